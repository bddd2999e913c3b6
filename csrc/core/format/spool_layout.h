// The spool's file, as the recorder maps it and as the reader finds it after a crash:
//
//   SpoolHeader (one page) | ring of events | ring of definition bytes
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../base/process_identity.h"
#include "format.h"

namespace alloctrace {

// Positions count bytes since the beginning; position % capacity is the offset in the ring. Part of the spool's format.
struct DefinitionLogState {
  std::atomic<std::uint64_t> head;  // everything before it is whole
  std::atomic<std::uint64_t> tail;  // everything before it is in the trace file
};

// The commit word of the event at a position, once it is whole.
constexpr std::uint32_t commit_mark(std::uint64_t position) { return static_cast<std::uint32_t>(position + 1); }
// Flipped in the mark of a free_requested whose free has completed at once: it is a free_completed, which stands for
// both.
constexpr std::uint32_t kCompletedBit = std::uint32_t{1} << 31;
// Flipped in the mark of a free_requested that the writer has taken: it is too late for the other bit.
constexpr std::uint32_t kTakenBit = std::uint32_t{1} << 30;
// In a larger ring, a mark with a flipped bit could be one of the round before.
constexpr std::uint64_t kMostRingEvents = std::uint64_t{1} << 29;

struct SpoolHeader {
  char magic[8];
  std::uint32_t format_version;
  std::uint32_t event_bytes;  // sizeof(Event)
  std::uint8_t session_id[16];
  std::uint64_t ring_offset, ring_capacity;                // capacity in events, a power of two
  std::uint64_t definitions_offset, definitions_capacity;  // capacity in bytes
  std::uint64_t process_id;

  // The latest clock anchor, in two copies of which `anchor_index` names the whole one.
  ClockAnchor anchors[2];
  std::atomic<std::uint32_t> anchor_index;

  // Positions count events since the beginning: they are the events' sequence numbers.
  alignas(64) std::atomic<std::uint64_t> head;  // claimed by hooks
  std::uint64_t head_mark;                      // kSpoolMark; 0 after the file was truncated here or before
  alignas(64) std::atomic<std::uint64_t> tail;  // everything before it is in the trace file
  DefinitionLogState definitions;

  alignas(64) std::atomic<std::uint64_t> lost[kLossCauseCount];
  std::atomic<std::uint64_t> lost_unreported[kLossCauseCount];  // not yet reported by a `lost` event
  std::atomic<std::uint64_t> empty_allocations, reentered, unknown_stacks;

  ProcessIdentity recorder;     // zeros in the spools of older recorders
  std::uint64_t counters_mark;  // as head_mark, for `lost` to `unknown_stacks`
};
constexpr std::size_t kSpoolHeaderBytes = 4096;
constexpr std::uint64_t kSpoolMark = ~std::uint64_t{0};
static_assert(sizeof(SpoolHeader) <= kSpoolHeaderBytes);

}  // namespace alloctrace
