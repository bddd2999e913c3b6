// Single events in a fold.
#pragma once

#include "../format/event.h"
#include "fold_codec.h"

namespace alloctrace {

void put_event(FoldWriter& fold, const Event& event);
// What names a definition that damage has taken names none.
Event read_event(FoldReader& fold);

}  // namespace alloctrace
