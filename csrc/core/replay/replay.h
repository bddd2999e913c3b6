// Memory of all devices at an event of a trace, rebuilt from the events before it: constant work per event, memory in
// proportion to live blocks.
// A trace may contain states reported by the allocator (at its start, its end, on request). Each is compared with the
// replay; if they differ, the replay continues from the state, so it is exact again after a loss.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../format/definitions.h"
#include "../format/event_fields.h"
#include "device_memory.h"
#include "forward_stacks.h"

namespace alloctrace {

// Disagreements of the trace with the replay, separate from the replay so that the replay can be copied.
struct ReplayFindings {
  struct Item {
    std::uint64_t sequence;
    std::size_t device;  // index in Replay::devices()
    std::string text;
  };
  static constexpr std::size_t kMaxItems = 1000;

  std::uint64_t states = 0, agreeing = 0;
  std::uint64_t resumed = 0;                           // states from which the replay continued after a loss
  std::uint64_t void_states = 0;                       // incomplete or corrupt states
  std::uint64_t contradictions = 0;                    // events that contradict the replay, without a loss before
  std::uint64_t after_loss = 0;                        // events that contradict the replay, after a loss
  std::vector<Item> differences, kept_contradictions;  // the first kMaxItems of each
};

// State of a replay other than the devices' memory.
struct ReplayContext {
  // A state of the allocator that is being read. Events of other devices may come in between.
  struct ReportedState {
    std::size_t device = 0;
    std::uint64_t sequence = 0, left = 0;
    std::int64_t time_ns = 0;
    std::vector<Event> events;
  };

  std::vector<std::size_t> device_of_location;
  std::vector<bool> is_complete;  // by device: nothing was lost since its first event or last state
  std::vector<bool> was_in_use;
  bool had_loss = false;  // any: a device that appears later starts incomplete
  ReportedState state;
  std::int64_t time_ns = 0;
};

struct PackedReplay {
  ReplayContext context;
  ForwardStacks::Rings forward;
  std::size_t forward_bytes = 0;  // not shared with an earlier checkpoint
  std::vector<PackedMemory> devices;

  std::size_t bytes() const;
};

struct Change {
  std::ptrdiff_t device = -1;       // whose memory changed; -1: none
  std::uint32_t forward_stack = 0;  // of an allocation in backward, see ForwardStacks
  bool replaces_state = false;      // the device's memory was replaced by a state of the allocator
};

class Replay {
 public:
  explicit Replay(const Definitions& definitions) : definitions_(&definitions), forward_(definitions) {}

  // Apply the next event, and set the size of a free if the trace lacks it.
  Change apply(Event& event, std::uint64_t sequence, std::int64_t time_ns, ReplayFindings* findings);
  // Mark all devices incomplete until their next state: events are missing here.
  void note_loss();
  // Return the stack of the forward operator that caused a request of backward (see ForwardStacks), else the stack id
  // of its node (see Definitions); 0 if the request has a stack.
  std::uint32_t cause_of(const Event& request) {
    const std::uint32_t forward = forward_.find(request);
    return forward == 0 && request.stack == 0 ? definitions_->stack_of({StackOrigin::Kind::kNode, request.node_type})
                                              : forward;
  }

  const ForwardStacks& forward_stacks() const { return forward_; }
  std::vector<DeviceMemory>& devices() { return devices_; }
  const std::vector<DeviceMemory>& devices() const { return devices_; }
  // Return nullptr for a device without events so far.
  const DeviceMemory* find(std::int32_t device_type, std::int32_t device_index) const;
  // Return whether the device was in use before the recording: its first events were a state with blocks.
  bool was_in_use(std::size_t device) const { return context_.was_in_use[device]; }
  // Return the time of the last event; 0 before the first.
  std::int64_t time_ns() const { return context_.time_ns; }
  // Copy the replay into a checkpoint, and restore it.
  PackedReplay packed() const;
  void unpack(const PackedReplay& packed);
  // Copy the replay into a compacted trace, and restore it into a replay without events; throw DecodeError.
  void save(CompactionWriter& out) const;
  void restore(CompactionReader& in);
  // Likewise for the memory alone. `base`: the replay at the end of the compacted part.
  void save_memory(CompactionWriter& out, const Replay& base) const;
  void restore_memory(CompactionReader& in, const Replay& base);
  [[gnu::always_inline]] void prefetch_entry(const Event& event) const {
    if (const DeviceMemory* memory = existing_device(event.location)) memory->prefetch_entry(event);
  }
  [[gnu::always_inline]] void prefetch_piece(const Event& event) const {
    if (const DeviceMemory* memory = existing_device(event.location)) memory->prefetch_piece(event);
  }
  [[gnu::always_inline]] void prefetch_neighbours(const Event& event) const {
    if (const DeviceMemory* memory = existing_device(event.location)) memory->prefetch_neighbours(event);
  }

 private:
  const DeviceMemory* existing_device(std::uint32_t location) const {
    const std::size_t index =
        location < context_.device_of_location.size() ? context_.device_of_location[location] : SIZE_MAX;
    return index < devices_.size() ? &devices_[index] : nullptr;
  }
  std::size_t device_of(std::uint32_t location);
  // Compare the completed state with the device; return whether the device was replaced by the state.
  bool finish_state(ReplayFindings* findings);
  void discard_state(ReplayFindings* findings);

  const Definitions* definitions_;
  ForwardStacks forward_;
  std::vector<DeviceMemory> devices_;
  ReplayContext context_;
};

}  // namespace alloctrace
