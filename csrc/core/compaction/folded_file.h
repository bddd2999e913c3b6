// A trace that begins with a fold, as it is written.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "../base/input_file.h"
#include "../format/trace_file.h"
#include "folded_part.h"

namespace alloctrace {

// All of the trace at `source`, from which `trace` was read: what is folded, then the rest as it is, damage and all, up
// to `end`. Throws TraceFileError where it cannot be written, OpenError where the source cannot be read.
void write_folded(TraceFile& file, const TraceReader& trace, const FoldedPart& part, const InputFile& source,
                  std::uint64_t end);

struct FoldedTrace {
  std::uint64_t events = 0, until = 0;  // folded ones, and the first that is not
  std::uint64_t bytes_before = 0, bytes_after = 0;
};

// A trace whose recording has ended, as a smaller one at `out`. until: the first event that is not folded. Throws what
// TraceReader throws, FoldingError and TraceFileError; then there is nothing new at `out`.
class FoldingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
FoldedTrace fold_trace(const std::shared_ptr<const TraceReader>& trace, std::uint64_t until, const std::string& out,
                       bool overwrite, std::pair<std::uint64_t, std::uint64_t> nodes_at_begin,
                       const FoldProgress& progress);

}  // namespace alloctrace
