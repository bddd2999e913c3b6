// Events in the compacted part of a trace.
#pragma once

#include "../format/event.h"
#include "fold_codec.h"

namespace alloctrace {

void put_event(CompactionWriter& out, const Event& event);
// Read an event. Ids without a definition become 0.
Event read_event(CompactionReader& in);

}  // namespace alloctrace
