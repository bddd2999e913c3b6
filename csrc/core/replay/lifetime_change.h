// Effect of one event on a block's lifetime, with a copy of the replay state that the evidence needs: the thread that
// records lifetimes runs behind the replay, whose state has changed by then.
#pragma once

#include <cstdint>

#include "../format/event.h"
#include "device_memory.h"

namespace alloctrace {

struct LifetimeChange {
  static constexpr std::uint32_t kNoDevice = UINT32_MAX;

  std::uint64_t alloc_sequence = UINT64_MAX;  // of the freed block; UINT64_MAX: no block was freed
  std::uint64_t bytes = 0;                    // allocated bytes of the freed block
  std::int64_t time_ns = 0;                   // of the event
  std::uint32_t device = kNoDevice;           // index in Replay::devices()
  std::uint32_t piece = 0, stack = 0;         // of the allocated or freed block
  std::uint32_t allocations = 0;              // of the stack, up to this event
  std::uint16_t node_type = 0;

  LifetimeChange() = default;
  explicit LifetimeChange(std::int64_t time) : time_ns(time) {}
  // `memory`: of the event's device, right after the event.
  LifetimeChange(const Event& event, std::int64_t time, std::size_t device_number, const DeviceMemory& memory)
      : time_ns(time), device(static_cast<std::uint32_t>(device_number)) {
    if (event.kind == EventKind::kAlloc) {
      piece = memory.last_allocated();
      stack = memory.piece(piece).stack;
    } else if (const FreedBlock& freed = memory.last_freed(); freed.alloc_sequence != UINT64_MAX) {
      alloc_sequence = freed.alloc_sequence;
      bytes = freed.bytes;
      piece = freed.piece;
      stack = freed.stack;
      node_type = freed.node_type;
    } else {
      return;
    }
    if (stack < memory.stacks().size()) allocations = static_cast<std::uint32_t>(memory.stacks()[stack].allocations);
  }
};

}  // namespace alloctrace
