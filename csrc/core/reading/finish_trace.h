// Recovery of a killed recording's trace: the events in its spool are appended to the trace, and the spool is removed.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "trace_reader.h"

namespace alloctrace {

// Error of a trace that cannot be finished. The message is a sentence for the user.
class FinishError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct FinishedTrace {
  bool was_ended = false;         // before the call: at most the spool was left to remove
  std::string spool_path;         // "": there was none
  std::string recorded_path;      // the original trace, for which the spool stays; "": the spool was removed
  std::uint64_t events = 0;       // number of events recovered from the spool
  std::uint64_t uncommitted = 0;  // calls that were in progress when the program was killed
};

// Append a killed recording's last events from its spool to the trace, and remove the spool. The trace is valid at
// every instant: the spool is removed only after the trace is on the disk, and the next call completes an interrupted
// one. A spool that only the header names belongs to the original trace and is not removed for a copy. spool_path,
// paths_of_header: as for TraceReader. Throws what TraceReader throws, and FinishError if the recording still runs, its
// spool is missing or the trace cannot be written. If the file system has no locks, the recorder's process is checked
// instead; on another machine, where that is impossible, `force` is required.
FinishedTrace finish_trace(const std::string& path, const std::string& spool_path,
                           const TraceReader::PathsOfHeader& paths_of_header, bool force = false);

}  // namespace alloctrace
