#include "account.h"

#include <algorithm>

namespace alloctrace {

Account::Account(const TraceReader& trace, std::uint64_t until, std::size_t points,
                 const std::function<void(double)>& progress)
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
    for (Event& event : events) {
      if (sequence >= until) break;
      const std::int64_t time_ns = trace.wall_ns(chunk, event.time);
      const auto kind = static_cast<std::size_t>(event.kind);
      ++kind_counts_[kind];
      if (event.kind >= EventKind::kStep && event.kind <= EventKind::kRegionEnd) {
        note_position(event, sequence, time_ns);
      } else {
        ledger_.apply(event, sequence, time_ns);
        if (points > 0) note_timeline(trace, sequence, time_ns, points);
      }
      ++sequence;
    }
  }
  fill_timeline_holes();
}

void Account::note_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns) {
  Position position{event.kind, sequence, time_ns, event.size, {}};
  for (const DeviceLedger& device : ledger_.devices()) position.live_bytes.push_back(device.live_bytes);
  positions_.push_back(std::move(position));
}

void Account::note_timeline(const TraceReader& trace, std::uint64_t sequence, std::int64_t time_ns,
                            std::size_t points) {
  const std::int64_t begin = trace.begin_ns();
  const std::int64_t span = std::max<std::int64_t>(trace.end_ns() - begin, 1);  // the reader keeps it in range
  // Modulo 2^64: the time of an event that is damaged may be anything.
  const auto since_begin =
      static_cast<std::int64_t>(static_cast<std::uint64_t>(time_ns) - static_cast<std::uint64_t>(begin));
  const double share = static_cast<double>(since_begin) / static_cast<double>(span);
  const auto interval =
      static_cast<std::size_t>(std::clamp(share * static_cast<double>(points), 0.0, static_cast<double>(points - 1)));
  for (std::size_t index = 0; index < ledger_.devices().size(); ++index) {
    if (index == timelines_.size()) timelines_.emplace_back(points);
    const DeviceLedger& device = ledger_.devices()[index];
    TimelineInterval& now = timelines_[index][interval];
    if (!now.seen) now.lowest = UINT64_MAX;
    if (device.live_bytes > now.highest || !now.seen) {
      now.highest = device.live_bytes;
      now.highest_sequence = sequence;
    }
    now.lowest = std::min(now.lowest, device.live_bytes);
    now.last = device.live_bytes;
    now.last_blocks = device.live.size();
    now.seen = true;
  }
}

void Account::fill_timeline_holes() {
  for (std::vector<TimelineInterval>& timeline : timelines_) {
    TimelineInterval before{};
    for (TimelineInterval& interval : timeline) {
      if (!interval.seen) {
        interval = before;
        interval.lowest = interval.highest = before.last;
      } else {  // the level at which the interval began belongs to it
        interval.lowest = std::min(interval.lowest, before.last);
        interval.highest = std::max(interval.highest, before.last);
      }
      before = interval;
    }
  }
}

}  // namespace alloctrace
