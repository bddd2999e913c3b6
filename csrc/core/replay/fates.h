// How the life of each block went, as far as autograd shows: what is inferred of its role follows from that (roles.h).
//
// An event in autograd's engine is one on a thread of the engine, or under the Python call that runs it. A *pass* is
// one run of backward over the nodes that a thread has made: it begins with the first event while such a node is being
// evaluated, and ends when that thread's program goes on. The number of nodes that a thread had made when the last pass
// over them began tells whether an allocation comes before the next forward or within it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../base/address_map.h"
#include "../base/seeded_hash.h"
#include "../format/definitions.h"
#include "../format/event.h"
#include "device_memory.h"
#include "life_change.h"
#include "stack_kinds.h"

namespace alloctrace {

// "Before forward": nodes of the last forward have had their pass, and no others were made since.
enum class Fate : std::uint8_t {
  kUnknown = 0,  // older than the recording, or events are missing
  // Made by the program, freed by it before a pass began ...
  kBrief = 1,       // ... in the same step, its stack having allocated nothing since
  kSameStep = 2,    // ... in the same step
  kLaterStep = 3,   // ... in a later one
  kSaved = 4,       // made in forward, freed by a pass: autograd held it
  kInputSaved = 5,  // made before forward, freed by the next pass
  kInputHeld = 6,   // made before forward, freed by the program after one pass
  kOutlived = 7,    // made in forward, held by the program beyond its pass
  kLong = 8,        // made by the program, lived through two passes or more
  // A refused request or the end of the trace came before its life could show what it is ...
  kCutOff = 9,
  kCutOffForward = 10,  // ... of one made in forward
  // Made in a pass ...
  kPassing = 11,         // ... and freed in it by the engine
  kPassingProgram = 12,  // ... and freed in it by a function or a hook of the program
  kLeftByPass = 13,      // ... and still there after it
};
constexpr std::size_t kFateCount = 14;

class Fates {
 public:
  explicit Fates(const Definitions& definitions) : definitions_(&definitions), kinds_(definitions) {}

  // How many nodes the thread that began the recording had made by then: they are of no forward that is in the trace.
  void begin(std::uint64_t native_id, std::uint64_t nodes) { began_by_ = native_id, nodes_at_begin_ = nodes; }

  // Each event of the program or of an allocator, first of all.
  void see(const Event& event, std::uint64_t sequence);
  // The event was an allocation, or ended a life.
  void allocated(const Event& event, std::uint64_t sequence, const LifeChange& change);
  void ended(const Event& event, const LifeChange& change);
  // After the last event: of what is still live.
  void finish(const std::vector<DeviceMemory>& devices);

  // births: of blocks that are asked about later though they have died.
  void save(FoldWriter& fold, const std::vector<DeviceMemory>& devices, const std::vector<std::uint64_t>& births) const;
  void restore(FoldReader& fold, const std::vector<DeviceMemory>& devices);

  Fate of(std::uint64_t birth) const;
  // Of a block that was cut off: the fate of most bytes that the same stack (and the same type of node) made.
  Fate usual(std::size_t device, std::uint32_t stack, std::uint16_t node_type) const;
  // Whether lives can be compared with steps, or with passes of backward.
  bool has_clock() const { return steps_ != 0 || passes_ != 0; }
  const StackKinds& kinds() const { return kinds_; }

 private:
  // A thread, by the number that autograd knows it by.
  struct Thread {
    std::uint64_t nodes = 0;         // that it has made
    std::uint64_t nodes_passed = 0;  // that it had made when the last pass over them began, or since when it ended
    std::uint64_t nodes_before = 0;  // that it had made when it last began to evaluate nodes of another pass
    std::uint32_t passes = 0;
    std::uint32_t evaluated = UINT32_MAX, evaluated_pass = 0;  // the thread whose nodes it evaluated last, and the pass
    bool is_in_pass = false;                                   // over its nodes
    bool is_of_engine = false;
  };
  enum class Maker : std::uint8_t { kBeforeForward, kForward, kPass, kRecompute, kRoot };
  // How a live block came to be; by its piece.
  struct Origin {
    std::uint64_t birth = UINT64_MAX;
    std::uint32_t thread = 0, passes = 0;  // whose pass ends its time, and how many had begun
    std::uint32_t step = 0, allocations = 0;
    Maker maker = Maker::kForward;
    bool makes_nodes = false;  // made in a pass that itself makes nodes (create_graph)
  };

  // What is usual somewhere is known after so many lives; from then on each kSample-th is counted.
  static constexpr std::uint64_t kAllCounted = 1'000'000, kSample = 16;
  // A page costs no more than a few times what the trace needs for an event that stands alone in it.
  static constexpr std::uint64_t kPageEvents = std::uint64_t{1} << 11;
  using Page = std::array<std::uint8_t, kPageEvents / 2>;  // four bits an event

  std::uint32_t thread_of(std::uint32_t event_thread);
  std::uint32_t thread_by_autograd_id(std::uint64_t id);
  bool is_engine(const Event& event) {
    return event.stack == 0 ? threads_[thread_of(event.thread)].is_of_engine : kinds_.is_engine(event.stack);
  }
  bool is_under_engine(const Event& event) {
    return threads_[thread_of(event.thread)].is_of_engine || (event.stack != 0 && kinds_.is_under_engine(event.stack));
  }
  Fate fate_at_end(const Origin& origin) const;
  Fate fate_at_free(const Origin& origin, const Event& event, const LifeChange& change);
  Fate before_a_pass(const Origin& origin, const LifeChange& change) const;
  void set(std::uint64_t birth, Fate fate);
  void count(std::size_t device, std::uint32_t stack, std::uint16_t node_type, std::uint64_t bytes, Fate fate);
  static std::uint64_t place(std::size_t device, std::uint32_t stack, std::uint16_t node_type) {
    return std::uint64_t{device} << 48 | std::uint64_t{stack} << 16 | node_type;
  }

  const Definitions* definitions_;
  StackKinds kinds_;
  std::vector<Thread> threads_;
  std::vector<std::uint32_t> number_of_thread_;  // in threads_, by the id in events
  std::unordered_map<std::uint64_t, std::uint32_t, SeededHash> number_by_autograd_id_;
  std::uint64_t last_autograd_id_ = UINT64_MAX;
  std::uint32_t last_number_ = 0;
  std::uint64_t began_by_ = 0, nodes_at_begin_ = 0;
  std::uint32_t steps_ = 0, passes_ = 0;
  std::uint64_t last_refusal_ = 0;
  std::vector<std::vector<Origin>> origins_;  // by device and piece
  std::unordered_map<std::uint64_t, std::unique_ptr<Page>, SeededHash> pages_;
  std::uint64_t last_page_ = UINT64_MAX;
  Page* last_ = nullptr;
  AddressMap<std::uint32_t> places_;
  std::vector<std::array<std::uint64_t, kFateCount>> bytes_;  // by place and fate
  std::vector<std::uint64_t> keys_;                           // of the places
  // By birth: blocks that were freed before the end of the fold.
  std::unordered_map<std::uint64_t, Fate, SeededHash> folded_;
  std::uint64_t counted_ = 0;
};

}  // namespace alloctrace
