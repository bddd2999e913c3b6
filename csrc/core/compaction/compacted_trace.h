#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "../base/input_file.h"
#include "../format/trace_file.h"
#include "compacted_part.h"

namespace alloctrace {

// Write all of the trace at `source`, from which `trace` was read: the compacted part, then the rest unchanged up to
// `end`, corruption included. Throws TraceFileError if writing fails, OpenError if reading fails.
void write_compacted(TraceFile& file, const TraceReader& trace, const CompactedPart& part, const InputFile& source,
                     std::uint64_t end);

struct CompactedTrace {
  std::uint64_t events = 0, until = 0;  // number of compacted events; the first later event
  std::uint64_t bytes_before = 0, bytes_after = 0;
};

// Error for a trace that cannot be compacted, or has nothing to compact.
class CompactionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Write a trace whose recording has ended to `out`, with the events before `until` compacted. Throws CompactionError,
// TraceFileError and what TraceReader throws; then nothing new is at `out`.
CompactedTrace compact_trace(const std::shared_ptr<const TraceReader>& trace, std::uint64_t until,
                             const std::string& out, bool overwrite,
                             std::pair<std::uint64_t, std::uint64_t> nodes_at_begin,
                             const CompactionProgress& progress);

}  // namespace alloctrace
