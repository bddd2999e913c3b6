#include "account.h"

namespace alloctrace {

Account::Account(const TraceReader& trace, std::uint64_t until, const std::function<void(double)>& progress)
    : ledger_(trace.definitions()) {
  std::vector<Event> events;
  std::size_t chunks_done = 0;
  for (const Chunk& chunk : trace.chunks()) {
    if (chunk.first_sequence >= until) break;
    if (progress) progress(static_cast<double>(chunks_done++) / static_cast<double>(trace.chunks().size()));
    try {
      trace.decode(chunk, events);
    } catch (const DecodeError&) {
      ++undecodable_chunks_;  // its checksum held, so a faulty writer made it; the rest is still good
      continue;
    }
    std::uint64_t sequence = chunk.first_sequence;
    const ChunkClock clock = trace.clock_of(chunk);
    for (Event& event : events) {
      if (sequence >= until) break;
      const std::int64_t time_ns = clock.wall_ns(event.time);
      const auto kind = static_cast<std::size_t>(event.kind);
      ++kind_counts_[kind];
      if (event.kind >= EventKind::kStep && event.kind <= EventKind::kRegionEnd) {
        note_position(event, sequence, time_ns);
      } else {
        ledger_.apply(event, sequence, time_ns);
      }
      ++sequence;
    }
  }
}

void Account::note_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns) {
  Position position{event.kind, sequence, time_ns, event.size, {}};
  for (const DeviceLedger& device : ledger_.devices()) position.live_bytes.push_back(device.live_bytes);
  positions_.push_back(std::move(position));
}

}  // namespace alloctrace
