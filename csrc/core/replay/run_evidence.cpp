#include "run_evidence.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

namespace alloctrace {

RunEvidence::RunEvidence(const TraceReader& trace, std::size_t points, const std::vector<std::uint32_t>& lines)
    : definitions_(&trace.definitions()),
      for_fold_(false),
      points_(points),
      lines_(&lines),
      begin_ns_(trace.begin_ns()),
      span_ns_(std::max<std::int64_t>(trace.end_ns() - begin_ns_, 1)),
      interval_end_ns_(begin_ns_),
      loops_(trace.definitions()),
      roles_(trace.definitions()) {}

RunEvidence::RunEvidence(const TraceReader& trace)
    : definitions_(&trace.definitions()),
      for_fold_(true),
      points_(kFoldedIntervals),
      lines_(nullptr),
      begin_ns_(trace.begin_ns()),
      span_ns_(1),
      interval_end_ns_(begin_ns_),
      loops_(trace.definitions()),
      roles_(trace.definitions()) {}

LifeChange RunEvidence::take_memory(const Event& event, std::uint64_t sequence, std::int64_t time_ns,
                                    const Change& change, Replay& replay) {
  ++kind_counts_[static_cast<std::size_t>(event.kind)];
  if (for_fold_) {
    times_.take(sequence, time_ns);
    if (event.kind == EventKind::kOom || event.kind == EventKind::kConfig) {
      kept_events_.push_back({sequence, time_ns, event});
    }
  }
  if (change.device < 0) {
    if (event.kind == EventKind::kOom) refusals_.push_back({sequence, replay.cause_of(event)});
    if (event.kind == EventKind::kRole) roles_.take(event, sequence, replay);
    if (event.kind == EventKind::kMemory) take_sample(event, sequence, time_ns, replay);
    if (event.kind >= EventKind::kStep && event.kind <= EventKind::kRegionEnd) {
      take_position(event, sequence, time_ns, replay);
    }
    return LifeChange(time_ns);
  }
  if (time_ns >= interval_end_ns_ && points_ > 0) interval_ = interval_at(time_ns);
  const auto device = static_cast<std::size_t>(change.device);
  while (timelines_.size() <= device) timelines_.emplace_back(points_);
  DeviceMemory& memory = replay.devices()[device];
  timelines_[device].note(memory, interval_, sequence, time_ns);
  return LifeChange(event, time_ns, device, memory);
}

void RunEvidence::take_lives(const Event& event, std::uint64_t sequence, const LifeChange& change) {
  roles_.fates().see(event, sequence);
  if (change.device == LifeChange::kNoDevice) return;
  while (long_lives_.size() <= change.device) long_lives_.emplace_back();
  LongLives& lives = long_lives_[change.device];
  if (event.kind == EventKind::kAlloc) {
    const std::uint32_t line = !lines_ ? change.stack : change.stack < lines_->size() ? (*lines_)[change.stack] : 0;
    lives.allocated(sequence, change.time_ns, line, event.size);
    loops_.take(event, sequence);
    roles_.fates().allocated(event, sequence, change);
  } else if (change.birth != UINT64_MAX) {
    lives.ended(change.birth, change.stack, change.bytes, sequence);
    roles_.fates().ended(event, change);
  }
}

// Of an event that comes after the interval that the last one was in.
std::size_t RunEvidence::interval_at(std::int64_t time_ns) {
  // Modulo 2^64: the time of an event that is damaged may be anything.
  const auto since = static_cast<std::uint64_t>(time_ns) - static_cast<std::uint64_t>(begin_ns_);
  if (for_fold_) {
    const std::uint64_t later = since >> 63 != 0 ? 0 : since;
    while (later >> interval_shift_ >= kFoldedIntervals) {
      ++interval_shift_;
      for (MemoryTimeline& timeline : timelines_) timeline.halve();
    }
    const std::uint64_t index = later >> interval_shift_;
    interval_end_ns_ =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(begin_ns_) + ((index + 1) << interval_shift_));
    return static_cast<std::size_t>(index);
  }
  const double share = static_cast<double>(static_cast<std::int64_t>(since)) / static_cast<double>(span_ns_);
  const auto last = static_cast<double>(points_ - 1);
  const auto index = static_cast<std::size_t>(std::clamp(share * static_cast<double>(points_), 0.0, last));
  interval_end_ns_ =
      begin_ns_ + static_cast<std::int64_t>(static_cast<double>(index + 1) / static_cast<double>(points_) *
                                            static_cast<double>(span_ns_));
  return index;
}

void RunEvidence::take_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns,
                                const Replay& replay) {
  const PositionFields fields(event);
  PositionEvent position{event.kind, sequence, time_ns, fields.value, fields.is_explicit != 0, {}, 0};
  position.live_bytes.reserve(replay.devices().size());
  for (const DeviceMemory& device : replay.devices()) position.live_bytes.push_back(device.totals().requested);
  if (event.kind == EventKind::kStep) position.ordinal = position.is_said ? steps_said_++ : steps_inferred_++;
  positions_.push_back(std::move(position));
}

void RunEvidence::take_sample(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay) {
  const Location& where = definitions_->location(event.location);
  const MemoryFields reported(event);
  MemorySample sample{sequence, time_ns, where.device_type, where.device_index, reported.used, reported.total};
  sample.by_this_process = reported.by_this_process;
  sample.by_others = reported.by_others;
  const DeviceMemory* const memory = replay.find(where.device_type, where.device_index);
  if (!memory || (memory->is_untouched() && !memory->reports_segments())) {
    sample.is_early = true;
  } else if (memory->reports_segments()) {
    sample.reserved = memory->totals().reserved;
  }
  for (auto before = samples_.rbegin(); before != samples_.rend(); ++before) {
    if (before->device_type != sample.device_type || before->device_index != sample.device_index) continue;
    sample.ordinal = before->ordinal + 1;
    break;
  }
  samples_.push_back(sample);
}

void RunEvidence::finish(const Replay& end) {
  // Of a device whose states all were void, nothing was noted.
  while (timelines_.size() < end.devices().size()) timelines_.emplace_back(points_);
  while (long_lives_.size() < timelines_.size()) long_lives_.emplace_back();
  for (LongLives& lives : long_lives_) lives.finish();
  roles_.finish(end);
  // Before the first event of a device there was nothing, unless it was in use when the recording began.
  for (MemorySample& sample : samples_) {
    if (!sample.is_early) continue;
    const DeviceMemory* const memory = end.find(sample.device_type, sample.device_index);
    if (!memory || !memory->reports_segments()) continue;
    const auto device = static_cast<std::size_t>(memory - end.devices().data());
    if (!end.was_in_use(device)) sample.reserved = 0;
  }
}

std::vector<std::uint64_t> RunEvidence::moments() const {
  constexpr std::size_t kLooks = 6;  // the verdict asks as many what held the blocks
  std::vector<std::uint64_t> found;
  for (const MemoryTimeline& timeline : timelines_) {
    for (const MemoryTimeline::Peak& peak : {timeline.allocated_peak(), timeline.reserved_peak()}) {
      if (peak.bytes != 0) found.push_back(peak.sequence + 1);
    }
  }
  for (const LongLives& lives : long_lives_) {
    if (lives.begins().empty()) continue;
    found.push_back(lives.begins().back());
    found.push_back(lives.last_allocation() + 1);
  }
  for (auto position = positions_.rbegin(); position != positions_.rend(); ++position) {
    if (position->kind != EventKind::kStep) continue;
    found.push_back(position->sequence + 1);
    for (const LongLives& lives : long_lives_) {
      const std::vector<std::uint64_t>& begins = lives.begins();
      const auto later = std::upper_bound(begins.begin(), begins.end(), position->sequence);
      if (later != begins.begin()) found.push_back(*std::prev(later));
    }
    break;
  }
  // The last refused request of a device, which the verdict explains.
  constexpr std::size_t kRefusals = 8;
  std::set<std::pair<std::int32_t, std::int32_t>> refused;
  for (auto kept = kept_events_.rbegin(); kept != kept_events_.rend() && refused.size() < kRefusals; ++kept) {
    if (kept->event.kind != EventKind::kOom) continue;
    const Location& where = definitions_->location(kept->event.location);
    if (refused.emplace(where.device_type, where.device_index).second) found.push_back(kept->sequence);
  }
  std::vector<std::uint64_t> looks;
  for (const HolderRecord& holder : definitions_->holders()) looks.push_back(holder.event);
  std::sort(looks.begin(), looks.end(), std::greater<>());
  looks.erase(std::unique(looks.begin(), looks.end()), looks.end());
  std::size_t left = kLooks;
  for (const std::uint64_t look : looks) {
    if (left == 0) break;
    --left;
    found.push_back(look);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void EventTimes::halve() {
  while (times_.size() > kMost / 2) {
    ++shift_;
    std::size_t kept = 0;
    for (const auto& time : times_) {
      if (kept == 0 || times_[kept - 1].first >> shift_ != time.first >> shift_) times_[kept++] = time;
    }
    times_.resize(kept);
  }
}

}  // namespace alloctrace
