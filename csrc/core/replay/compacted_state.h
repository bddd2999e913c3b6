// The compacted part at the beginning of a trace: the state at its end, the evidence of a pass over it, and snapshots
// of the memory at some of its positions (the peaks, the end of the last step).
//
//   CompactionSummary (format/format.h) | state | evidence | number of snapshots | snapshot ...
//
// Parts are sections (compaction_codec.h). A snapshot is the number of the event after it, and its difference to the
// state.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "../format/format.h"
#include "../reading/trace_reader.h"
#include "run_evidence.h"

namespace alloctrace {

class CompactedState {
 public:
  // Throws OpenError, FormatError if the compacted part has another version, or DecodeError if it is invalid.
  explicit CompactedState(const TraceReader& trace);

  // Restore an empty replay and empty evidence. Throws DecodeError.
  void restore(Replay& replay, RunEvidence& evidence) const;
  // Return the events that follow a snapshot, ascending.
  const std::vector<std::uint64_t>& snapshot_positions() const { return snapshot_positions_; }
  // Return the snapshot before an event, if there is one. end: the state at the end of the compacted part.
  std::optional<Replay> memory_before(std::uint64_t event, const Replay& end) const;

 private:
  struct Part {
    std::size_t begin = 0, size = 0;
  };
  CompactionReader reader(const Part& part) const;

  const Definitions* definitions_;
  std::int64_t until_ns_;
  Bytes payload_;
  Part state_, evidence_;
  std::vector<std::uint64_t> snapshot_positions_;
  std::vector<Part> parts_;  // snapshots
};

struct CompactedSnapshot {
  std::uint64_t until = 0;  // the event after the snapshot
  Bytes memory;
};

// Return the payload of a compacted part, without its summary.
Bytes compaction_payload(const Replay& replay, const RunEvidence& evidence,
                         const std::vector<CompactedSnapshot>& snapshots, const std::vector<Roles::Key>& past);

}  // namespace alloctrace
