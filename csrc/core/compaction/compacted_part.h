// Compacted part of a trace, computed by replaying the events that it replaces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "../format/format.h"
#include "../reading/trace_reader.h"

namespace alloctrace {

struct CompactedPart {
  CompactionSummary summary;
  Bytes dictionary;  // all definitions of the trace
  Bytes payload;     // of the compacted block, after the summary
  // Offset from which the file is copied; chunk compacted in part, whose other events are written before the copy.
  std::uint64_t copy_offset = 0;
  Chunk split_chunk{};
  ClockAnchor end{};  // when the compacted part ends
};

// Callback for progress from 0 to 1; may throw to cancel.
using CompactionProgress = std::function<void(double)>;

// Return the compacted part for the events before `until`, beyond the present one. nodes_at_begin: see ReplayRun.
// Throws OpenError, or FormatError for an invalid present part.
CompactedPart compact_until(const std::shared_ptr<const TraceReader>& trace, std::uint64_t until,
                            std::pair<std::uint64_t, std::uint64_t> nodes_at_begin, const CompactionProgress& progress);

}  // namespace alloctrace
