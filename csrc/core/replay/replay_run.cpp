#include "replay_run.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace alloctrace {
ReplayRun::ReplayRun(std::shared_ptr<const TraceReader> trace, std::size_t points,
                     const std::vector<std::uint32_t>& lines, const std::function<void(double)>& progress,
                     std::pair<std::uint64_t, std::uint64_t> nodes_at_begin)
    : trace_(std::move(trace)), evidence_(*trace_, points, lines), end_(trace_->definitions()) {
  TraceCursor cursor(trace_);
  if (trace_->compacted_until() != 0) {
    restore_compacted(cursor.replay());
    cursor.skip_compacted();
  } else {
    evidence_.roles().lifetimes().begin(nodes_at_begin.first, nodes_at_begin.second);
  }
  cursor.decode_in_background();
  const std::vector<Chunk>& chunks = trace_->chunks();
  const std::unique_ptr<LifetimeThread> lives = start_lives_thread();
  std::vector<LifetimeChange> changes;
  std::vector<Event> consumed;
  const auto on_event = [&](const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Change& change) {
    if (lives) {
      changes.push_back(evidence_.record_memory(event, sequence, time_ns, change, cursor.replay()));
    } else {
      evidence_.record(event, sequence, time_ns, change, cursor.replay());
    }
  };
  std::uint64_t events = 0;  // counted: sequence numbers have gaps where events are missing
  while (!cursor.at_end()) {
    if (progress) progress(static_cast<double>(cursor.chunk()) / static_cast<double>(chunks.size()));
    if (events >= next_checkpoint_) add_checkpoint(cursor.chunk(), events, cursor.replay());
    events += chunks[cursor.chunk()].event_count;
    cursor.consume_chunk(UINT64_MAX, &evidence_.findings(), on_event);
    if (lives && !changes.empty()) {
      const std::uint64_t first = cursor.swap_events(consumed);
      lives->enqueue(first, consumed, changes);
    }
  }
  if (lives) lives->finish();
  end_ = std::move(cursor.replay());
  evidence_.finish(end_);
}

// Return nullptr for a short trace, or if the system cannot start a thread.
std::unique_ptr<LifetimeThread> ReplayRun::start_lives_thread() {
  if (trace_->chunks().size() < TraceCursor::kMinThreadChunks) return nullptr;
  try {
    return std::make_unique<LifetimeThread>(evidence_);
  } catch (const std::system_error&) {
    return nullptr;
  }
}

void ReplayRun::restore_compacted(Replay& replay) {
  try {
    compacted_ = std::make_unique<CompactedState>(*trace_);
    compacted_->restore(replay, evidence_);
  } catch (const DecodeError& error) {
    throw FormatError(trace_->path() + " begins with sums of compacted events that are invalid (" + error.what() +
                      "): what comes after them cannot be replayed");
  }
  beginning_.state = replay.packed();
  const auto add_time = [&](std::uint64_t sequence, std::int64_t time_ns) {
    if (sequence < trace_->compacted_until()) compacted_times_.emplace_back(sequence, time_ns);
  };
  for (const auto& [sequence, time_ns] : evidence_.times().times()) add_time(sequence, time_ns);
  for (const PositionEvent& position : evidence_.positions()) add_time(position.sequence, position.time_ns);
  for (const MemoryTimeline& timeline : evidence_.timelines()) {
    for (const MemoryTimeline::Peak& peak : {timeline.allocated_peak(), timeline.reserved_peak()}) {
      if (peak.bytes != 0) add_time(peak.sequence, peak.time_ns);
    }
  }
  for (const LongLifetimes& lives : evidence_.long_lifetimes()) {
    for (std::size_t cell = 0; cell < lives.begins().size(); ++cell)
      add_time(lives.begins()[cell], lives.begins_ns()[cell]);
    if (!lives.begins().empty()) add_time(lives.last_allocation(), lives.last_ns());
  }
  if (trace_->compacted_until() != 0) add_time(trace_->compacted_until() - 1, trace_->integrity().compacted_until_ns);
  std::sort(compacted_times_.begin(), compacted_times_.end());
}

const std::vector<std::uint64_t>& ReplayRun::compacted_positions() const {
  static const std::vector<std::uint64_t> kNoPositions;
  return compacted_ ? compacted_->snapshot_positions() : kNoPositions;
}

void ReplayRun::add_checkpoint(std::size_t chunk, std::uint64_t events, const Replay& replay) {
  const auto begin_of = [this](std::size_t index) { return checkpoints_[index].events; };
  checkpoints_.push_back({chunk, events, replay.packed()});
  const std::size_t bytes = checkpoints_.back().state.bytes();
  checkpoint_bytes_ += bytes;
  while (checkpoint_bytes_ > kMaxCheckpointBytes && checkpoints_.size() > 1) {
    // Drop the checkpoint whose neighbours are closest to each other, and no more: the memory stays fully used.
    std::size_t dropped = 0;
    std::uint64_t shortest = UINT64_MAX;
    for (std::size_t index = 0; index + 1 < checkpoints_.size(); ++index) {
      const std::uint64_t distance = begin_of(index + 1) - (index == 0 ? 0 : begin_of(index - 1));
      if (distance < shortest) {
        shortest = distance;
        dropped = index;
      }
    }
    checkpoint_bytes_ -= checkpoints_[dropped].state.bytes();
    checkpoints_.erase(checkpoints_.begin() + static_cast<std::ptrdiff_t>(dropped));
    checkpoint_distance_ =
        std::max(checkpoint_distance_, begin_of(checkpoints_.size() - 1) * 3 / 2 / checkpoints_.size());
  }
  const std::uint64_t copy_distance = std::min<std::uint64_t>(bytes / kBytesPerEvent, kMaxDistance);
  next_checkpoint_ = events + std::max(checkpoint_distance_, copy_distance);
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
  const Checkpoint* const nearest = checkpoint_before(sequence);
  cursor.restore(nearest ? *nearest : beginning_);
  return cursor;
}

std::vector<GroupTimeline> ReplayRun::group_timelines(GroupOptions options,
                                                      const std::function<void(double)>& progress) const {
  // The complete run includes events whose time is wrong.
  if (options.begin_ns > trace_->begin_ns()) options.first = sequence_after(options.begin_ns - 1);
  if (options.end_ns < trace_->end_ns()) options.until = sequence_after(options.end_ns);
  options.first = std::min(options.first, end_sequence());
  options.devices = end_.devices().size();
  return alloctrace::group_timelines(*trace_, cursor_before(options.first), roles(), options, progress);
}

TraceCursor ReplayRun::cursor_at_beginning() const {
  TraceCursor cursor(trace_);
  cursor.restore(beginning_);
  return cursor;
}

void ReplayRun::move_near(TraceCursor& cursor, std::uint64_t until) const {
  const Checkpoint* const checkpoint = checkpoint_before(until);
  const Checkpoint& nearest = checkpoint ? *checkpoint : beginning_;
  if (cursor.consumed_until() > until || cursor.chunk() < nearest.chunk) cursor.restore(nearest);
}

Replay ReplayRun::compacted_state_before(std::uint64_t until) const {
  if (until == 0) return Replay(trace_->definitions());
  Replay end(trace_->definitions());
  end.unpack(beginning_.state);
  try {
    if (std::optional<Replay> state = compacted_->memory_before(until, end)) return std::move(*state);
  } catch (const DecodeError& error) {
    throw FormatError(trace_->path() + " has a state in its compacted part that is invalid (" + error.what() + ")");
  }
  throw CompactedError("the trace is compacted up to event " + std::to_string(trace_->compacted_until() - 1) +
                       ": of what was in memory before that, only the peaks and the end of the last step are left; ask "
                       "for a later position");
}

std::int64_t ReplayRun::compacted_time_before(std::uint64_t until) const {
  if (until == 0 || compacted_times_.empty()) return 0;
  const std::uint64_t event = until - 1;
  const auto is_earlier = [](const auto& entry, std::uint64_t sequence) { return entry.first < sequence; };
  const auto after = std::lower_bound(compacted_times_.begin(), compacted_times_.end(), event, is_earlier);
  if (after == compacted_times_.end()) return compacted_times_.back().second;
  if (after->first == event || after == compacted_times_.begin()) return after->second;
  const auto before = std::prev(after);
  const double share = static_cast<double>(event - before->first) / static_cast<double>(after->first - before->first);
  return before->second +
         static_cast<std::int64_t>(share * (static_cast<double>(after->second) - static_cast<double>(before->second)));
}

std::int64_t ReplayRun::time_before(std::uint64_t until) const {
  if (until <= trace_->compacted_until()) return compacted_time_before(until);
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
  return compacted_time_before(trace_->compacted_until());
}

std::uint64_t ReplayRun::sequence_after(std::int64_t time_ns) const {
  if (!compacted_times_.empty() && time_ns < compacted_times_.back().second) {
    for (const auto& [sequence, known_ns] : compacted_times_) {
      if (known_ns > time_ns) return sequence;
    }
  }
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
    const auto event = std::find_if(events.begin(), events.end(), later);
    if (event != events.end()) return chunk.first_sequence + static_cast<std::uint64_t>(event - events.begin());
  }
  return UINT64_MAX;
}

const Replay& States::before(std::uint64_t until) {
  if (until < run_->compacted_until()) {
    if (!compacted_state_ || compacted_position_ != until) {
      compacted_state_.reset();
      compacted_state_.emplace(run_->compacted_state_before(until));
      compacted_position_ = until;
    }
    return *compacted_state_;
  }
  if (until >= run_->end_sequence()) return run_->end();
  run_->move_near(cursor_, until);
  const auto ignore = [](const Event&, std::uint64_t, std::int64_t, const Change&) {};
  while (cursor_.consume_chunk(until, nullptr, ignore)) {
  }
  return cursor_.replay();
}

void States::release() {
  cursor_ = run_->cursor_at_beginning();
  compacted_state_.reset();
}

}  // namespace alloctrace
