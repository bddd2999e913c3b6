// What an event did to the life of a block, with all that the evidence of lives needs of the memory as it was then: so
// that the evidence can be gathered on another thread, when the memory has moved on.
#pragma once

#include <cstdint>

#include "../format/event.h"
#include "device_memory.h"

namespace alloctrace {

struct LifeChange {
  static constexpr std::uint32_t kNoDevice = UINT32_MAX;

  std::uint64_t birth = UINT64_MAX;    // of the block that was given up; UINT64_MAX: none was
  std::uint64_t bytes = 0;             // allocated ones, of that block
  std::int64_t time_ns = 0;            // of the event
  std::uint32_t device = kNoDevice;    // its number in the replay; kNoDevice: the event was of none
  std::uint32_t piece = 0, stack = 0;  // of the block that was allocated or given up
  std::uint32_t allocations = 0;       // that the stack had made by then
  std::uint16_t node_type = 0;

  LifeChange() = default;
  explicit LifeChange(std::int64_t time) : time_ns(time) {}
  // memory: of the event's device, right after the event.
  LifeChange(const Event& event, std::int64_t time, std::size_t device_number, const DeviceMemory& memory)
      : time_ns(time), device(static_cast<std::uint32_t>(device_number)) {
    if (event.kind == EventKind::kAlloc) {
      piece = memory.last_allocated();
      stack = memory.piece(piece).stack;
    } else if (const EndedLife& ended = memory.ended(); ended.birth != UINT64_MAX) {
      birth = ended.birth;
      bytes = ended.bytes;
      piece = ended.piece;
      stack = ended.stack;
      node_type = ended.node_type;
    } else {
      return;
    }
    if (stack < memory.stacks().size()) allocations = static_cast<std::uint32_t>(memory.stacks()[stack].allocations);
  }
};

}  // namespace alloctrace
