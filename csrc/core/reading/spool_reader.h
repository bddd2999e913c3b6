// What a killed (or still running) recording left in its spool: the events and definitions that are not in the trace
// yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../base/process_identity.h"
#include "../base/varint.h"
#include "../format/format.h"

namespace alloctrace {

struct SpoolContents {
  struct Run {
    std::uint64_t first_sequence;
    std::vector<Event> events;
  };
  std::vector<Run> runs;             // in order; a break between runs is a hook that never came to its end
  std::uint64_t first_sequence = 0;  // everything before it is in the trace file
  std::uint64_t next_sequence = 0;   // of the next event that a hook would have begun
  std::uint64_t uncommitted = 0;     // slots claimed by such hooks
  Bytes definitions;
  ClockAnchor anchor{};  // the latest
  Counters counters{};
  ProcessIdentity recorder;
};

// nullopt when there is no such file, or it is not the spool of this session. Safe against a recording that still
// runs, provided that the trace file is read afterwards.
std::optional<SpoolContents> read_spool(const std::string& path, const std::uint8_t (&session_id)[16]);

}  // namespace alloctrace
