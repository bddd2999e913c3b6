// Layout of the spool file, as the recorder maps it and the reader finds it after a crash:
//
//   SpoolHeader (one page) | ring of events | ring of definition bytes
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../base/process_identity.h"
#include "format.h"

namespace alloctrace {

// Positions in the definition log, in bytes since its start; modulo capacity the offset in the ring. File format.
struct DefinitionLogState {
  std::atomic<std::uint64_t> head;  // all bytes before it are complete
  std::atomic<std::uint64_t> tail;  // all bytes before it are in the trace file
};

// Return the commit word of a complete event at a position.
constexpr std::uint32_t commit_mark(std::uint64_t position) { return static_cast<std::uint32_t>(position + 1); }
// Flipped in the mark of a free_requested whose free completed at once: one free_completed event replaces both.
constexpr std::uint32_t kCompletedBit = std::uint32_t{1} << 31;
// Flipped in the mark of a free_requested that the writer has consumed: kCompletedBit must not be flipped any more.
constexpr std::uint32_t kConsumedBit = std::uint32_t{1} << 30;
// Maximum ring capacity: in a larger ring a mark with a flipped bit could equal a mark of the previous round.
constexpr std::uint64_t kMaxRingEvents = std::uint64_t{1} << 29;

struct SpoolHeader {
  char magic[8];
  std::uint32_t format_version;
  std::uint32_t event_bytes;  // sizeof(Event)
  std::uint8_t session_id[16];
  std::uint64_t ring_offset, ring_capacity;                // from the start of the file; in events, a power of two
  std::uint64_t definitions_offset, definitions_capacity;  // from the start of the file; in bytes
  std::uint64_t process_id;

  // Latest clock anchor, in two copies; `anchor_index` selects the complete one.
  ClockAnchor anchors[2];
  std::atomic<std::uint32_t> anchor_index;

  // Positions in events since the beginning: the events' sequence numbers.
  alignas(64) std::atomic<std::uint64_t> head;  // claimed by hooks
  std::uint64_t head_mark;                      // kSpoolMark; 0 if the file was truncated at or before this field
  alignas(64) std::atomic<std::uint64_t> tail;  // all events before it are in the trace file
  DefinitionLogState definitions;

  alignas(64) std::atomic<std::uint64_t> lost[kLossCauseCount];
  std::atomic<std::uint64_t> lost_unreported[kLossCauseCount];  // not yet reported by a `lost` event
  std::atomic<std::uint64_t> empty_allocations, reentered, unknown_stacks;

  ProcessIdentity recorder;     // zero in the spools of older recorders
  std::uint64_t counters_mark;  // as head_mark, for `lost` to `unknown_stacks`
};
constexpr std::size_t kSpoolHeaderBytes = 4096;
constexpr std::uint64_t kSpoolMark = ~std::uint64_t{0};
static_assert(sizeof(SpoolHeader) <= kSpoolHeaderBytes);

}  // namespace alloctrace
