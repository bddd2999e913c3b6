// What is left of the beginning of a trace that is folded: the state at its end, what a pass over it has gathered, and
// the memory at some moments in it that are asked for whatever else is: the peaks, the end of the last step.
//
//   summary (format/fold.h) | state | evidence | number of moments | moment ...
//
// Each part is a section (fold_codec.h); a moment is the number of the event before which it is, and the memory there
// as its difference to the state.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "../format/fold.h"
#include "../reading/trace_reader.h"
#include "run_evidence.h"

namespace alloctrace {

class Fold {
 public:
  // Of a trace that is folded. Throws OpenError, FormatError where it is of another version, or DecodeError where it
  // makes no sense.
  explicit Fold(const TraceReader& trace);

  // Into a replay and evidence that know nothing yet. Throws DecodeError.
  void restore(Replay& replay, RunEvidence& evidence) const;
  // The events before which the memory is known, ascending.
  const std::vector<std::uint64_t>& moments() const { return moments_; }
  // The memory before one of them. end: the state where the fold ends. Nothing for any other event.
  std::optional<Replay> memory_before(std::uint64_t event, const Replay& end) const;

 private:
  struct Part {
    std::size_t begin = 0, size = 0;
  };
  FoldReader reader(const Part& part) const;

  const Definitions* definitions_;
  std::int64_t until_ns_;
  Bytes payload_;
  Part state_, evidence_;
  std::vector<std::uint64_t> moments_;
  std::vector<Part> parts_;  // of the moments
};

// The memory at a moment, on its way into a fold.
struct FoldedMoment {
  std::uint64_t until = 0;
  Bytes memory;
};

// A payload, behind its summary.
Bytes fold_payload(const Replay& replay, const RunEvidence& evidence, const std::vector<FoldedMoment>& moments,
                   const std::vector<Roles::Key>& past);

}  // namespace alloctrace
