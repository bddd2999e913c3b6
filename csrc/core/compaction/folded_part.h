// What stands in place of the events of a trace before a certain one: worked out by replaying them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "../format/fold.h"
#include "../reading/trace_reader.h"

namespace alloctrace {

struct FoldedPart {
  FoldSummary summary;
  Bytes dictionary;  // all definitions of the trace
  Bytes payload;     // of the fold's block, behind the summary
  // Where the file goes on with what is not folded; before that, where the last folded block was begun, the rest of its
  // events (none where the fold ends with a block).
  std::uint64_t copied_from = 0;
  Chunk cut{};
  ClockAnchor end{};  // when the fold ends
};

// Called now and then with a share from 0 to 1; may throw to give up.
using FoldProgress = std::function<void(double)>;

// Of a trace that is not folded up to there yet. nodes_at_begin: see ReplayRun. Throws OpenError, and FormatError where
// the fold that the trace begins with makes no sense.
FoldedPart fold_until(const std::shared_ptr<const TraceReader>& trace, std::uint64_t until,
                      std::pair<std::uint64_t, std::uint64_t> nodes_at_begin, const FoldProgress& progress);

}  // namespace alloctrace
