#include "fold_events.h"

namespace alloctrace {

void put_event(FoldWriter& fold, const Event& event) {
  fold.byte(static_cast<std::uint8_t>(event.kind));
  for (const std::uint64_t field : {event.time, event.address, event.size, event.sequence, event.node_sequence}) {
    fold.number(field);
  }
  for (const std::uint32_t field : {event.stack, event.thread, event.location, event.node_thread}) fold.number(field);
  fold.number(event.node_type);
}

Event read_event(FoldReader& fold) {
  Event event{};
  event.kind = static_cast<EventKind>(fold.byte());
  for (std::uint64_t* field : {&event.time, &event.address, &event.size, &event.sequence, &event.node_sequence}) {
    *field = fold.number();
  }
  for (std::uint32_t* field : {&event.stack, &event.thread, &event.location, &event.node_thread}) {
    *field = fold.number32();
  }
  const Definitions& definitions = fold.definitions();
  if (event.stack >= definitions.frame_count()) event.stack = 0;
  if (event.location >= definitions.location_count()) event.location = 0;
  const std::uint32_t node_type = fold.number32();
  event.node_type = static_cast<std::uint16_t>(node_type < definitions.node_type_count() ? node_type : 0);
  return event;
}

}  // namespace alloctrace
