// Events in the compacted part of a trace.
#pragma once

#include "../format/compaction_codec.h"
#include "../format/event.h"

namespace alloctrace {

void put_event(CompactionWriter& out, const Event& event);
// Read an event. Ids without a definition become 0.
Event read_event(CompactionReader& in);

}  // namespace alloctrace
