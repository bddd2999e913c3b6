#include "replay_run.h"

#include <algorithm>
#include <utility>

namespace alloctrace {
namespace {

// Two tenths of a second of replay, about; longer in traces of which that many states would not fit.
constexpr std::uint64_t kCheckPointDistance = 750'000;
constexpr std::size_t kCheckPointBytes = std::size_t{1} << 30;

// So many events ahead their memory is asked for.
constexpr std::size_t kPlaceAhead = 24, kPieceAhead = 16, kNeighboursAhead = 8;

void prefetch(const std::vector<Event>& events, std::size_t index, const Replay& replay) {
  // A free mostly comes as two events, one behind the other: the first has asked already.
  const auto is_new = [&](std::size_t at) {
    return at < events.size() && events[at].address != events[at - 1].address;
  };
  if (is_new(index + kPlaceAhead)) replay.prefetch_place(events[index + kPlaceAhead]);
  if (is_new(index + kPieceAhead)) replay.prefetch_piece(events[index + kPieceAhead]);
  if (is_new(index + kNeighboursAhead)) replay.prefetch_neighbours(events[index + kNeighboursAhead]);
}

// Calls `take(event, sequence, time)` for each event of the chunk. The replay is told where events are missing before
// it, or all of it cannot be read.
template <typename Take>
void replay_chunk(const TraceReader& trace, const Chunk& chunk, std::uint64_t expected, std::vector<Event>& events,
                  Replay& replay, Take take) {
  if (chunk.first_sequence != expected) replay.note_loss();
  try {
    trace.decode(chunk, events);
  } catch (const DecodeError&) {
    replay.note_loss();
    return;
  }
  std::uint64_t sequence = chunk.first_sequence;
  const ChunkClock clock = trace.clock_of(chunk);
  for (std::size_t index = 0; index < events.size(); ++index) {
    prefetch(events, index, replay);
    take(events[index], sequence++, clock.wall_ns(events[index].time));
  }
}

}  // namespace

ReplayRun::ReplayRun(std::shared_ptr<const TraceReader> trace, std::size_t points,
                     const std::function<void(double)>& progress)
    : trace_(std::move(trace)),
      check_point_distance_(kCheckPointDistance),
      next_check_point_(kCheckPointDistance),
      asked_(trace_->definitions()) {
  auto replay = std::make_unique<Replay>(trace_->definitions());
  const std::int64_t begin = trace_->begin_ns();
  const std::int64_t span = std::max<std::int64_t>(trace_->end_ns() - begin, 1);
  std::size_t interval = 0;
  std::int64_t interval_end = begin;
  std::vector<Event> events;
  std::uint64_t expected = 0;
  const std::vector<Chunk>& chunks = trace_->chunks();
  for (std::size_t index = 0; index < chunks.size(); ++index) {
    if (progress) progress(static_cast<double>(index) / static_cast<double>(chunks.size()));
    const Chunk& chunk = chunks[index];
    if (chunk.first_sequence >= next_check_point_) keep_check_point(index, *replay);
    replay_chunk(
        *trace_, chunk, expected, events, *replay,
        [&](const Event& event, std::uint64_t sequence, std::int64_t time_ns) {
          ++kind_counts_[static_cast<std::size_t>(event.kind)];
          const std::ptrdiff_t changed = replay->apply(event, sequence, time_ns, &findings_);
          if (changed < 0) {
            if (event.kind == EventKind::kOom) refusals_.push_back({sequence, replay->forward_stack(event)});
            if (event.kind == EventKind::kMemory) take_sample(event, sequence, time_ns, *replay);
            if (event.kind >= EventKind::kStep && event.kind <= EventKind::kRegionEnd) {
              take_position(event, sequence, time_ns, *replay);
            }
            return;
          }
          if (time_ns >= interval_end && points > 0) {
            // Modulo 2^64: the time of an event that is damaged may be anything.
            const auto since = static_cast<std::uint64_t>(time_ns) - static_cast<std::uint64_t>(begin);
            const double share = static_cast<double>(static_cast<std::int64_t>(since)) / static_cast<double>(span);
            const auto last = static_cast<double>(points - 1);
            interval = static_cast<std::size_t>(std::clamp(share * static_cast<double>(points), 0.0, last));
            interval_end = begin + static_cast<std::int64_t>(static_cast<double>(interval + 1) /
                                                             static_cast<double>(points) * static_cast<double>(span));
          }
          const auto device = static_cast<std::size_t>(changed);
          while (timelines_.size() <= device) timelines_.emplace_back(points);
          timelines_[device].note(replay->devices()[device], interval, sequence, time_ns);
        });
    expected = chunk.first_sequence + chunk.event_count;
  }
  for (MemoryTimeline& timeline : timelines_) timeline.fill_holes();
  end_ = std::move(replay);
  finish_samples();
}

void ReplayRun::take_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay) {
  Position position{event.kind, sequence, time_ns, event.size, {}};
  for (const DeviceMemory& device : replay.devices()) position.live_bytes.push_back(device.totals().requested);
  positions_.push_back(std::move(position));
}

void ReplayRun::take_sample(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay) {
  const Location& where = trace_->definitions().location(event.location);
  MemorySample sample{sequence, time_ns, where.device_type, where.device_index, event.address, event.size};
  sample.by_this_process = event.sequence;
  sample.by_others = event.node_sequence;
  const DeviceMemory* const memory = replay.find(where.device_type, where.device_index);
  if (!memory || (memory->is_untouched() && !memory->tells_segments())) {
    early_samples_.push_back(samples_.size());
  } else if (memory->tells_segments()) {
    sample.reserved = memory->totals().reserved;
  }
  samples_.push_back(sample);
}

// Before the first event of a device there was nothing, unless it was in use when the recording began.
void ReplayRun::finish_samples() {
  for (const std::size_t index : early_samples_) {
    MemorySample& sample = samples_[index];
    const DeviceMemory* const memory = end_->find(sample.device_type, sample.device_index);
    if (!memory || !memory->tells_segments()) continue;
    const auto device = static_cast<std::size_t>(memory - end_->devices().data());
    if (!end_->was_in_use(device)) sample.reserved = 0;
  }
}

void ReplayRun::keep_check_point(std::size_t chunk, const Replay& replay) {
  const auto begin_of = [this](std::size_t index) {
    return trace_->chunks()[check_points_[index].chunk].first_sequence;
  };
  check_points_.push_back({chunk, replay.packed()});
  check_point_bytes_ += check_points_.back().state.bytes();
  while (check_point_bytes_ > kCheckPointBytes && check_points_.size() > 1) {
    // The one goes without which the way between its neighbours is shortest: so all of the memory is used, always.
    std::size_t spared = 0;
    std::uint64_t shortest = UINT64_MAX;
    for (std::size_t index = 0; index + 1 < check_points_.size(); ++index) {
      const std::uint64_t way = begin_of(index + 1) - (index == 0 ? 0 : begin_of(index - 1));
      if (way < shortest) {
        shortest = way;
        spared = index;
      }
    }
    check_point_bytes_ -= check_points_[spared].state.bytes();
    check_points_.erase(check_points_.begin() + static_cast<std::ptrdiff_t>(spared));
    check_point_distance_ =
        std::max(check_point_distance_, begin_of(check_points_.size() - 1) * 3 / 2 / check_points_.size());
  }
  next_check_point_ = trace_->chunks()[chunk].first_sequence + check_point_distance_;
}

const Replay& ReplayRun::state_before(std::uint64_t until) {
  const std::vector<Chunk>& chunks = trace_->chunks();
  const auto end_of = [](const Chunk& chunk) { return chunk.first_sequence + chunk.event_count; };
  if (chunks.empty() || until >= end_of(chunks.back())) return *end_;
  static const PackedReplay kNothing;
  std::uint64_t nearest = 0;
  const PackedReplay* state = &kNothing;
  for (const CheckPoint& point : check_points_) {
    if (chunks[point.chunk].first_sequence > until) break;
    nearest = chunks[point.chunk].first_sequence;
    state = &point.state;
  }
  if (asked_until_ > until || asked_until_ < nearest) {
    asked_.unpack(*state);
    asked_until_ = nearest;
  }
  const std::uint64_t begin = asked_until_;
  asked_until_ = UINT64_MAX;  // should reading throw, what is in asked_ is nobody's state
  const auto is_done = [&](const Chunk& chunk) { return end_of(chunk) <= begin; };
  auto chunk = std::find_if_not(chunks.begin(), chunks.end(), is_done);
  std::vector<Event> events;
  for (; chunk != chunks.end() && chunk->first_sequence < until; ++chunk) {
    const bool is_begun = chunk->first_sequence < begin;
    const std::uint64_t expected = is_begun                  ? chunk->first_sequence
                                   : chunk == chunks.begin() ? 0
                                                             : end_of(*std::prev(chunk));
    replay_chunk(*trace_, *chunk, expected, events, asked_,
                 [&](const Event& event, std::uint64_t sequence, std::int64_t time_ns) {
                   if (sequence >= begin && sequence < until) asked_.apply(event, sequence, time_ns, nullptr);
                 });
  }
  asked_until_ = until;
  return asked_;
}

std::uint64_t ReplayRun::sequence_after(std::int64_t time_ns) const {
  std::vector<Event> events;
  for (const Chunk& chunk : trace_->chunks()) {
    const ChunkClock clock = trace_->clock_of(chunk);
    if (clock.wall_ns(chunk.end.counter) <= time_ns) continue;
    try {
      trace_->decode(chunk, events);
    } catch (const DecodeError&) {
      continue;
    }
    const auto later = [&](const Event& event) { return clock.wall_ns(event.time) > time_ns; };
    const auto found = std::find_if(events.begin(), events.end(), later);
    if (found != events.end()) return chunk.first_sequence + static_cast<std::uint64_t>(found - events.begin());
  }
  return UINT64_MAX;
}

}  // namespace alloctrace
