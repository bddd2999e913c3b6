// Reader of the events and definitions in the spool of a killed or running recording that are not in the trace yet.
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
  std::vector<Run> runs;             // in order; between two runs, a hook had not committed its event
  std::uint64_t first_sequence = 0;  // all events before it are in the trace file
  std::uint64_t next_sequence = 0;   // of the next event to be claimed
  std::uint64_t uncommitted = 0;     // slots claimed and not committed
  Bytes definitions;
  ClockAnchor anchor{};  // the latest
  Counters counters{};
  ProcessIdentity recorder;
};

// Read the spool of a session; nullopt if there is none at `path`. While the recording runs, read the trace file after
// the spool: events that are moved in between are then in both, not in neither.
std::optional<SpoolContents> read_spool(const std::string& path, const std::uint8_t (&session_id)[16]);

}  // namespace alloctrace
