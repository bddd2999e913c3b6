#include "kept_event_codec.h"

namespace alloctrace {

void put_event(CompactionWriter& out, const Event& event) {
  out.byte(static_cast<std::uint8_t>(event.kind));
  for (const std::uint64_t field : {event.time, event.address, event.size, event.sequence, event.node_sequence}) {
    out.number(field);
  }
  for (const std::uint32_t field : {event.stack, event.thread, event.location, event.node_thread}) out.number(field);
  out.number(event.node_type);
}

Event read_event(CompactionReader& in) {
  Event event{};
  event.kind = static_cast<EventKind>(in.byte());
  for (std::uint64_t* field : {&event.time, &event.address, &event.size, &event.sequence, &event.node_sequence}) {
    *field = in.number();
  }
  for (std::uint32_t* field : {&event.stack, &event.thread, &event.location, &event.node_thread}) {
    *field = in.number32();
  }
  const Definitions& definitions = in.definitions();
  if (event.stack >= definitions.frame_count()) event.stack = 0;
  if (event.location >= definitions.location_count()) event.location = 0;
  const std::uint32_t node_type = in.number32();
  event.node_type = static_cast<std::uint16_t>(node_type < definitions.node_type_count() ? node_type : 0);
  return event;
}

}  // namespace alloctrace
