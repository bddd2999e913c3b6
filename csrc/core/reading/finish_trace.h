// Ends the trace of a recording that was killed: what its spool has goes into the trace, and the spool away.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "trace_reader.h"

namespace alloctrace {

// A trace that cannot be finished; the message says why, in a sentence.
class FinishError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct FinishedTrace {
  bool was_ended = false;     // before: there was nothing to do but, perhaps, to remove the spool
  std::string spool;          // its path; "" where there was none
  std::string recorded_path;  // the spool stays for this trace, of which the finished one is a copy; "": it is removed
  std::uint64_t events = 0;   // taken over from it
  std::uint64_t uncommitted = 0;  // calls that were in progress when the program was killed
};

// Whole at every instant: the spool is removed only after the trace with all it had is on the disk, and a call that is
// interrupted is completed by the next one. A spool that only the header names belongs to the trace that was recorded:
// it is not removed for a copy. `spool_path`, `paths_of_header`: as for TraceReader. Throws FinishError where the
// recording still runs, its spool is missing or the trace cannot be written, and what TraceReader throws. Where the
// file system has no locks, whether it runs is judged by the recorder's process; on another machine than the recorder's
// that cannot be known, and only `force` goes on.
FinishedTrace finish_trace(const std::string& path, const std::string& spool_path,
                           const TraceReader::PathsOfHeader& paths_of_header, bool force = false);

}  // namespace alloctrace
