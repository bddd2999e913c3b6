// Lifetimes of blocks relative to forward and backward, from which roles are inferred (roles.h).
//
// An event is in autograd's engine if it is on a thread of the engine, or under the Python call that runs the engine. A
// *pass* is one run of backward over the nodes that a thread created: from the first event while such a node is
// evaluated, until that thread's program continues. An allocation is in the next forward if its thread has created
// nodes since the last pass over its nodes or is in the call of a module, else before it.
//
// A *call* is an outermost call of a module on a thread: consecutive events in calls count as one. Calls decide the
// lifetimes of blocks that no pass has decided, as in inference.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../base/address_map.h"
#include "../base/hash.h"
#include "../format/definitions.h"
#include "../format/event.h"
#include "device_memory.h"
#include "lifetime_change.h"
#include "stack_kinds.h"

namespace alloctrace {

// "Before forward": the pass over the last forward's nodes has begun, and no nodes were created since, nor is a module
// called.
enum class Lifetime : std::uint8_t {
  kUnknown = 0,          // older than the recording, or events are missing
  kBrief = 1,            // freed by the program before a pass, before its stack's next allocation in the same step
  kSameStep = 2,         // freed by the program before a pass, in the same step; by an optimizer, within its step
  kLaterStep = 3,        // freed by the program before a pass, in a later step
  kSaved = 4,            // allocated in forward, freed by a pass, or with its graph: held by autograd
  kInputSaved = 5,       // allocated before forward, freed by the next pass
  kInputHeld = 6,        // allocated before forward, freed by the program after one pass or call
  kOutlived = 7,         // allocated in forward, held by the program beyond its pass, or over several rounds
  kLong = 8,             // allocated by the program, live through two passes or more
  kCutOff = 9,           // undecided at a failed allocation or the end of the trace
  kCutOffForward = 10,   // allocated in forward, undecided at a failed allocation or the end of the trace
  kPassing = 11,         // allocated in a pass, freed in it by the engine
  kPassingProgram = 12,  // allocated in a pass, freed in it by a function or a hook of the program
  kLeftByPass = 13,      // allocated in a pass, live after it
};
constexpr std::size_t kLifetimeCount = 14;

class Lifetimes {
 public:
  explicit Lifetimes(const Definitions& definitions) : definitions_(&definitions), kinds_(definitions) {}

  // Set the thread that began the recording, and how many nodes it had created before: no recorded forward has them.
  void begin(std::uint64_t native_id, std::uint64_t nodes) { first_thread_ = native_id, nodes_at_begin_ = nodes; }

  // Update threads, steps and passes. Call for each event, before the functions below.
  void update(const Event& event, std::uint64_t sequence);
  // Begin or end the lifetime of a block.
  void begin_lifetime(const Event& event, std::uint64_t sequence, const LifetimeChange& change);
  void end_lifetime(const Event& event, const LifetimeChange& change);
  // Decide the lifetimes of live blocks, after the last event.
  void finish(const std::vector<DeviceMemory>& devices);

  // freed: sequence numbers of the allocations of freed blocks whose lifetimes are needed later.
  void save(CompactionWriter& out, const std::vector<DeviceMemory>& devices,
            const std::vector<std::uint64_t>& freed) const;
  void restore(CompactionReader& in, const std::vector<DeviceMemory>& devices);

  Lifetime of(std::uint64_t alloc_sequence) const;
  // Return the lifetime with the most bytes of a stack and node type: an estimate of cut-off lifetimes.
  Lifetime most_common(std::size_t device, std::uint32_t stack, std::uint16_t node_type) const;
  // Return whether the trace has steps or passes.
  bool has_clock() const { return steps_ != 0 || passes_ != 0; }
  const StackKinds& kinds() const { return kinds_; }

 private:
  // A thread as autograd counts them.
  struct Thread {
    std::uint64_t nodes = 0;         // created by this thread
    std::uint64_t nodes_passed = 0;  // `nodes` when the last pass over them began; after the pass, when it ended
    std::uint64_t nodes_before = 0;  // `nodes` when this thread began to evaluate nodes of the current pass
    std::uint32_t passes = 0;        // over its nodes
    std::uint32_t evaluated_thread = UINT32_MAX, evaluated_pass = 0;  // of its last evaluated nodes
    bool is_in_pass = false;                                          // over its nodes
    bool is_of_engine = false;
    bool has_new_node = false;  // created since the thread's previous event
    bool is_in_call = false;
    std::uint32_t calls = 0;              // begun
    std::uint64_t nodes_before_call = 0;  // `nodes` when the last call began
    // Last block allocated in a call.
    std::uint32_t last_device = 0, last_piece = 0;
    std::uint64_t last_allocation = UINT64_MAX;
  };
  // Allocations of a stack. A round begins when the stack allocates and, since it last did, a call or pass has begun.
  struct Rounds {
    std::uint32_t thread = UINT32_MAX, begun = 0;  // calls and passes of that thread, at the last allocation
    std::uint32_t count = 0;
  };
  enum class Phase : std::uint8_t { kBeforeForward, kForward, kPass, kRecompute, kRoot };
  // Allocation of a live block.
  struct Origin {
    std::uint64_t alloc_sequence = UINT64_MAX;
    std::uint32_t thread = 0, passes = 0;  // thread whose passes count, and how many had begun
    std::uint32_t step = 0, allocations = 0;
    Phase phase = Phase::kForward;
    bool makes_nodes = false;  // allocated in a pass that creates nodes (create_graph)
    bool is_in_call = false;
    bool is_in_graph = false;      // allocated in a call, after the call created a node
    bool is_of_node = false;       // allocated after a node was created, by the operator of that node
    bool is_last_of_call = false;  // allocated last in the call: its result
    std::uint32_t calls = 0;       // of its thread, begun
    std::uint32_t round = 0;       // of its stack
  };

  // Lifetimes are counted for most_common(); after kAllCounted of them, only each kSample-th.
  static constexpr std::uint64_t kAllCounted = 1'000'000, kSample = 16;
  // Rounds that the program must hold a block for it to be a result: a batch may be loaded ahead of its use.
  static constexpr std::uint32_t kKeptRounds = 3;
  // Small: if a hostile trace has one event per page, all pages cost no more than a few times the file.
  static constexpr std::uint64_t kPageEvents = std::uint64_t{1} << 11;
  using Page = std::array<std::uint8_t, kPageEvents / 2>;  // four bits per event

  // Sections of the saved state.
  void save_threads(CompactionWriter& out) const;
  void restore_threads(CompactionReader& in);
  void save_origins(CompactionWriter& out, std::size_t device, const DeviceMemory& memory) const;
  void restore_origins(CompactionReader& in, const DeviceMemory& memory);
  template <typename Origins, typename Visit>
  static void visit_origins(Origins& origins, const std::vector<DeviceMemory>& devices, Visit visit);
  void save_calls(CompactionWriter& out, const std::vector<DeviceMemory>& devices) const;
  void restore_calls(CompactionReader& in, const std::vector<DeviceMemory>& devices);
  void save_counted(CompactionWriter& out) const;
  void restore_counted(CompactionReader& in);
  void save_freed(CompactionWriter& out, const std::vector<std::uint64_t>& freed) const;
  void restore_freed(CompactionReader& in);
  static void put_origin(CompactionWriter& out, const Origin& origin, const Origin& before);
  static Origin read_origin(CompactionReader& in, const Origin& before, std::size_t threads);

  std::uint32_t thread_of(std::uint32_t event_thread);
  std::uint32_t thread_by_autograd_id(std::uint64_t id);
  // False if the node's creator is unknown, as in converted snapshots: such nodes do not show when passes begin.
  static bool is_in_node(const Event& event) { return event.node_type != 0 && event.node_thread != 0; }
  bool is_engine(const Event& event) {
    return event.stack == 0 ? threads_[thread_of(event.thread)].is_of_engine : kinds_.is_engine(event.stack);
  }
  bool is_under_engine(const Event& event) {
    return threads_[thread_of(event.thread)].is_of_engine || (event.stack != 0 && kinds_.is_under_engine(event.stack));
  }
  void update_call(const Event& event, Thread& thread);
  std::uint32_t begin_round(std::uint32_t stack, std::uint32_t thread);
  // Return whether the program has held a block of this stack for kKeptRounds.
  bool is_kept(const Origin& origin, std::uint32_t stack) const {
    return stack < rounds_.size() && rounds_[stack].count - origin.round >= kKeptRounds;
  }
  // Return whether this stack has allocated in a later round.
  bool is_replaced(const Origin& origin, std::uint32_t stack) const {
    return stack < rounds_.size() && rounds_[stack].count != origin.round;
  }
  // Without autograd, a block of a call may be temporary or a result.
  static Lifetime cut_off_forward(const Origin& origin) {
    return origin.is_in_call && !origin.is_in_graph ? Lifetime::kCutOff : Lifetime::kCutOffForward;
  }
  Lifetime lifetime_at_end(const Origin& origin, std::uint32_t stack) const;
  Lifetime lifetime_at_free(const Origin& origin, const Event& event, const LifetimeChange& change);
  Lifetime lifetime_before_pass(const Origin& origin, const Event& event, const LifetimeChange& change);
  void store(std::uint64_t alloc_sequence, Lifetime lifetime);
  void count(std::size_t device, std::uint32_t stack, std::uint16_t node_type, std::uint64_t bytes, Lifetime lifetime);
  static std::uint64_t key_of(std::size_t device, std::uint32_t stack, std::uint16_t node_type) {
    return std::uint64_t{device} << 48 | std::uint64_t{stack} << 16 | node_type;
  }

  const Definitions* definitions_;
  StackKinds kinds_;
  std::vector<Thread> threads_;
  std::vector<std::uint32_t> thread_index_;  // in threads_, by thread id of an event; UINT32_MAX: none yet
  std::unordered_map<std::uint64_t, std::uint32_t, SeededHash> index_by_autograd_id_;
  std::uint64_t last_autograd_id_ = UINT64_MAX;
  std::uint32_t last_index_ = 0;
  std::uint64_t first_thread_ = 0, nodes_at_begin_ = 0;
  std::uint32_t steps_ = 0, passes_ = 0;
  std::uint64_t last_oom_ = 0;
  std::vector<std::vector<Origin>> origins_;  // by device and piece
  std::vector<Rounds> rounds_;                // by stack, below the synthetic stacks
  std::unordered_map<std::uint64_t, std::unique_ptr<Page>, SeededHash> pages_;
  std::uint64_t last_page_number_ = UINT64_MAX;
  Page* last_page_ = nullptr;
  AddressMap<std::uint32_t> rows_;                                     // in bytes_, by key_of()
  std::vector<std::array<std::uint64_t, kLifetimeCount>> bytes_;       // by row and lifetime
  std::vector<std::uint64_t> keys_;                                    // by row
  std::unordered_map<std::uint64_t, Lifetime, SeededHash> compacted_;  // freed in the compacted part
  std::uint64_t counted_ = 0;
};

}  // namespace alloctrace
