#include "replay_run.h"

#include <algorithm>
#include <utility>

namespace alloctrace {
ReplayRun::ReplayRun(std::shared_ptr<const TraceReader> trace, std::size_t points,
                     const std::vector<std::uint32_t>& lines, const std::function<void(double)>& progress,
                     std::pair<std::uint64_t, std::uint64_t> nodes_at_begin)
    : trace_(std::move(trace)),
      loops_(trace_->definitions()),
      roles_(trace_->definitions()),
      end_(trace_->definitions()),
      asked_(trace_) {
  roles_.fates().begin(nodes_at_begin.first, nodes_at_begin.second);
  TraceCursor cursor(trace_);
  cursor.decode_ahead();
  const std::int64_t begin = trace_->begin_ns();
  const std::int64_t span = std::max<std::int64_t>(trace_->end_ns() - begin, 1);
  std::size_t interval = 0;
  std::int64_t interval_end = begin;
  const std::vector<Chunk>& chunks = trace_->chunks();
  const auto take = [&](const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Change& change) {
    ++kind_counts_[static_cast<std::size_t>(event.kind)];
    roles_.fates().see(event, sequence);
    if (change.device < 0) {
      if (event.kind == EventKind::kOom) refusals_.push_back({sequence, cursor.replay().cause_of(event)});
      if (event.kind == EventKind::kRole) roles_.take(event, sequence, cursor.replay());
      if (event.kind == EventKind::kMemory) take_sample(event, sequence, time_ns, cursor.replay());
      if (event.kind >= EventKind::kStep && event.kind <= EventKind::kRegionEnd) {
        take_position(event, sequence, time_ns, cursor.replay());
      }
      return;
    }
    if (time_ns >= interval_end && points > 0) {
      // Modulo 2^64: the time of an event that is damaged may be anything.
      const auto since = static_cast<std::uint64_t>(time_ns) - static_cast<std::uint64_t>(begin);
      const double share = static_cast<double>(static_cast<std::int64_t>(since)) / static_cast<double>(span);
      const auto last = static_cast<double>(points - 1);
      interval = static_cast<std::size_t>(std::clamp(share * static_cast<double>(points), 0.0, last));
      interval_end = begin + static_cast<std::int64_t>(static_cast<double>(interval + 1) / static_cast<double>(points) *
                                                       static_cast<double>(span));
    }
    const auto device = static_cast<std::size_t>(change.device);
    while (timelines_.size() <= device) {
      timelines_.emplace_back(points);
      long_lives_.emplace_back();
    }
    DeviceMemory& memory = cursor.replay().devices()[device];
    timelines_[device].note(memory, interval, sequence, time_ns);
    if (event.kind == EventKind::kAlloc) {
      const std::uint32_t stack = memory.piece(memory.last_allocated()).stack;
      long_lives_[device].allocated(sequence, time_ns, stack < lines.size() ? lines[stack] : 0, event.size);
      loops_.take(event, sequence);
      roles_.fates().allocated(event, sequence, device, memory);
    } else if (memory.ended().birth != UINT64_MAX) {
      long_lives_[device].ended(memory.ended(), sequence);
      roles_.fates().ended(event, device, memory);
    }
  };
  std::uint64_t events = 0;  // not their numbers: any may be missing in between
  while (!cursor.at_end()) {
    if (progress) progress(static_cast<double>(cursor.chunk()) / static_cast<double>(chunks.size()));
    if (events >= next_checkpoint_) keep_checkpoint(cursor.chunk(), events, cursor.replay());
    events += chunks[cursor.chunk()].event_count;
    cursor.take_chunk(UINT64_MAX, &findings_, take);
  }
  // Of a device whose states all were void, nothing was noted.
  while (timelines_.size() < cursor.replay().devices().size()) {
    timelines_.emplace_back(points);
    long_lives_.emplace_back();
  }
  for (MemoryTimeline& timeline : timelines_) timeline.fill_holes();
  for (LongLives& lives : long_lives_) lives.finish();
  end_ = std::move(cursor.replay());
  roles_.finish(end_);
  finish_samples();
}

void ReplayRun::take_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay) {
  const PositionFields fields(event);
  PositionEvent position{event.kind, sequence, time_ns, fields.value, fields.is_said != 0, {}};
  for (const DeviceMemory& device : replay.devices()) position.live_bytes.push_back(device.totals().requested);
  positions_.push_back(std::move(position));
}

void ReplayRun::take_sample(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay) {
  const Location& where = trace_->definitions().location(event.location);
  const MemoryFields reported(event);
  MemorySample sample{sequence, time_ns, where.device_type, where.device_index, reported.used, reported.total};
  sample.by_this_process = reported.by_this_process;
  sample.by_others = reported.by_others;
  const DeviceMemory* const memory = replay.find(where.device_type, where.device_index);
  if (!memory || (memory->is_untouched() && !memory->reports_segments())) {
    early_samples_.push_back(samples_.size());
  } else if (memory->reports_segments()) {
    sample.reserved = memory->totals().reserved;
  }
  samples_.push_back(sample);
}

// Before the first event of a device there was nothing, unless it was in use when the recording began.
void ReplayRun::finish_samples() {
  for (const std::size_t index : early_samples_) {
    MemorySample& sample = samples_[index];
    const DeviceMemory* const memory = end_.find(sample.device_type, sample.device_index);
    if (!memory || !memory->reports_segments()) continue;
    const auto device = static_cast<std::size_t>(memory - end_.devices().data());
    if (!end_.was_in_use(device)) sample.reserved = 0;
  }
}

void ReplayRun::keep_checkpoint(std::size_t chunk, std::uint64_t events, const Replay& replay) {
  const auto begin_of = [this](std::size_t index) { return checkpoints_[index].events; };
  checkpoints_.push_back({chunk, events, replay.packed()});
  const std::size_t bytes = checkpoints_.back().state.bytes();
  checkpoint_bytes_ += bytes;
  while (checkpoint_bytes_ > kCheckpointBytes && checkpoints_.size() > 1) {
    // The one goes without which the way between its neighbours is shortest: so all of the memory is used, always.
    std::size_t spared = 0;
    std::uint64_t shortest = UINT64_MAX;
    for (std::size_t index = 0; index + 1 < checkpoints_.size(); ++index) {
      const std::uint64_t way = begin_of(index + 1) - (index == 0 ? 0 : begin_of(index - 1));
      if (way < shortest) {
        shortest = way;
        spared = index;
      }
    }
    checkpoint_bytes_ -= checkpoints_[spared].state.bytes();
    checkpoints_.erase(checkpoints_.begin() + static_cast<std::ptrdiff_t>(spared));
    checkpoint_distance_ =
        std::max(checkpoint_distance_, begin_of(checkpoints_.size() - 1) * 3 / 2 / checkpoints_.size());
  }
  const std::uint64_t worth = std::min<std::uint64_t>(bytes / kBytesPerEvent, kFarthest);
  next_checkpoint_ = events + std::max(checkpoint_distance_, worth);
}

const Checkpoint* ReplayRun::checkpoint_before(std::uint64_t sequence) const {
  const auto is_later = [&](const Checkpoint& point) {
    return trace_->chunks()[point.chunk].first_sequence > sequence;
  };
  const auto later = std::find_if(checkpoints_.begin(), checkpoints_.end(), is_later);
  return later == checkpoints_.begin() ? nullptr : &*std::prev(later);
}

TraceCursor ReplayRun::cursor_before(std::uint64_t sequence) const {
  TraceCursor cursor(trace_);
  if (const Checkpoint* const nearest = checkpoint_before(sequence)) cursor.jump(*nearest);
  return cursor;
}

const Replay& ReplayRun::state_before(std::uint64_t until) {
  const std::vector<Chunk>& chunks = trace_->chunks();
  if (chunks.empty() || until >= chunks.back().end_sequence()) return end_;
  static const Checkpoint kBeginning;
  const Checkpoint* const known = checkpoint_before(until);
  const Checkpoint& nearest = known ? *known : kBeginning;
  if (asked_.taken_until() > until || asked_.chunk() < nearest.chunk) asked_.jump(nearest);
  const auto take = [](const Event&, std::uint64_t, std::int64_t, const Change&) {};
  while (asked_.take_chunk(until, nullptr, take)) {
  }
  return asked_.replay();
}

std::int64_t ReplayRun::time_before(std::uint64_t until) const {
  std::vector<Event> events;
  const std::vector<Chunk>& chunks = trace_->chunks();
  const auto is_earlier = [](const Chunk& chunk, std::uint64_t number) { return chunk.first_sequence < number; };
  auto chunk = std::lower_bound(chunks.begin(), chunks.end(), until, is_earlier);
  while (chunk != chunks.begin()) {
    --chunk;
    events.clear();
    try {
      trace_->decode(*chunk, events);
    } catch (const DecodeError&) {
      continue;
    }
    const std::size_t before = std::min<std::uint64_t>(events.size(), until - chunk->first_sequence);
    if (before != 0) return trace_->clock_of(*chunk).wall_ns(events[before - 1].time);
  }
  return 0;
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
