// The memory of all devices at any event of a trace, rebuilt from its events alone: streaming, constant work per event,
// memory in proportion to live blocks.
//
// The trace may have states of the allocator itself (at its start, its end, on request). Each is compared with the
// replay, and where they differ the replay continues from the state: so it is exact again after a loss.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../format/definitions.h"
#include "../format/event_fields.h"
#include "device_memory.h"
#include "forward_stacks.h"

namespace alloctrace {

// What does not fit, kept apart from the state so that the state can be copied.
struct ReplayFindings {
  struct Item {
    std::uint64_t sequence;
    std::size_t device;  // index in Replay::devices()
    std::string text;
  };
  static constexpr std::size_t kKept = 1000;

  std::uint64_t states = 0, agreeing = 0;
  std::uint64_t resumed = 0;         // states from which the replay continued after a loss
  std::uint64_t void_states = 0;     // events inside them are missing
  std::uint64_t contradictions = 0;  // events that do not fit what came before, with no loss to explain them
  std::uint64_t after_loss = 0;      // those that a loss explains
  std::vector<Item> differences, kept_contradictions;  // the first kKept of each
};

// What a replay knows so far, apart from the memory itself.
struct ReplayKnowledge {
  // A state that is being read. No event of its device comes in between; those of others may.
  struct ReportedState {
    std::size_t device = 0;
    std::uint64_t sequence = 0, left = 0;
    std::int64_t time_ns = 0;
    std::vector<Event> events;
  };

  std::vector<std::size_t> device_of_location;
  std::vector<bool> is_known;  // by device: nothing was lost since its beginning or its last state
  std::vector<bool> was_in_use;
  bool had_loss = false;  // before a device's first event
  ReportedState state;
  std::int64_t time_ns = 0;
};

// A replay in a checkpoint.
struct PackedReplay {
  ReplayKnowledge knowledge;
  ForwardStacks::Rings forward;
  std::size_t forward_bytes = 0;  // that no checkpoint before it has
  std::vector<PackedMemory> devices;

  std::size_t bytes() const;
};

// What an event changed.
struct Change {
  std::ptrdiff_t device = -1;       // whose memory; -1: none
  std::uint32_t forward_stack = 0;  // of an allocation of backward, see ForwardStacks
  bool is_other_state = false;      // all of it: the trace says that it is another
};

class Replay {
 public:
  explicit Replay(const Definitions& definitions) : definitions_(&definitions), forward_(definitions) {}

  // Takes in the next event, and fills in the size of a free where the trace does not have it.
  Change apply(Event& event, std::uint64_t sequence, std::int64_t time_ns, ReplayFindings* findings);
  // Events are missing here.
  void note_loss();
  // For a request that backward made: the stack of the forward that caused it (see ForwardStacks), else what stands for
  // its node (see Definitions); 0 if it has a stack.
  std::uint32_t cause_of(const Event& request) {
    const std::uint32_t forward = forward_.find(request);
    return forward == 0 && request.stack == 0 ? definitions_->stack_of_node(request.node_type) : forward;
  }

  const ForwardStacks& forward_stacks() const { return forward_; }
  std::vector<DeviceMemory>& devices() { return devices_; }
  const std::vector<DeviceMemory>& devices() const { return devices_; }
  // nullptr for a device that has no events yet.
  const DeviceMemory* find(std::int32_t device_type, std::int32_t device_index) const;
  // Whether the device's first events were a state with memory in it: it was in use before the recording began.
  bool was_in_use(std::size_t device) const { return seen_.was_in_use[device]; }
  // Time of the last event that was taken in; 0 before the first.
  std::int64_t time_ns() const { return seen_.time_ns; }
  // A copy to keep, and the way back from one.
  PackedReplay packed() const;
  void unpack(const PackedReplay& packed);
  // The same in a fold; restore() is for a replay that has taken nothing in, and throws DecodeError.
  void save(FoldWriter& fold) const;
  void restore(FoldReader& fold);
  // The memory alone, to be looked at. base: the state at the end of the fold.
  void save_memory(FoldWriter& fold, const Replay& base) const;
  void restore_memory(FoldReader& fold, const Replay& base);
  [[gnu::always_inline]] void prefetch_entry(const Event& event) const {
    if (const DeviceMemory* memory = known_device(event.location)) memory->prefetch_entry(event);
  }
  [[gnu::always_inline]] void prefetch_piece(const Event& event) const {
    if (const DeviceMemory* memory = known_device(event.location)) memory->prefetch_piece(event);
  }
  [[gnu::always_inline]] void prefetch_neighbours(const Event& event) const {
    if (const DeviceMemory* memory = known_device(event.location)) memory->prefetch_neighbours(event);
  }

 private:
  const DeviceMemory* known_device(std::uint32_t location) const {
    const std::size_t index =
        location < seen_.device_of_location.size() ? seen_.device_of_location[location] : SIZE_MAX;
    return index < devices_.size() ? &devices_[index] : nullptr;
  }
  std::size_t device_of(std::uint32_t location);
  // Whether the device became what the state says.
  bool end_state(ReplayFindings* findings);
  void void_state(ReplayFindings* findings);

  const Definitions* definitions_;
  ForwardStacks forward_;
  std::vector<DeviceMemory> devices_;
  ReplayKnowledge seen_;
};

}  // namespace alloctrace
