#include "run_evidence.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>

namespace alloctrace {

RunEvidence::RunEvidence(const TraceReader& trace, std::size_t points, const std::vector<std::uint32_t>& lines)
    : definitions_(&trace.definitions()),
      for_compaction_(false),
      points_(points),
      lines_(&lines),
      begin_ns_(trace.begin_ns()),
      span_ns_(std::max<std::int64_t>(trace.end_ns() - begin_ns_, 1)),
      interval_end_ns_(begin_ns_),
      loops_(trace.definitions()),
      roles_(trace.definitions()) {}

RunEvidence::RunEvidence(const TraceReader& trace)
    : definitions_(&trace.definitions()),
      for_compaction_(true),
      points_(kMaxCompactedIntervals),
      lines_(nullptr),
      begin_ns_(trace.begin_ns()),
      span_ns_(1),
      interval_end_ns_(begin_ns_),
      loops_(trace.definitions()),
      roles_(trace.definitions()) {}

LifetimeChange RunEvidence::record_memory(const Event& event, std::uint64_t sequence, std::int64_t time_ns,
                                          const Change& change, Replay& replay) {
  ++kind_counts_[static_cast<std::size_t>(event.kind)];
  if (for_compaction_) {
    times_.add(sequence, time_ns);
    if (event.kind == EventKind::kOom || event.kind == EventKind::kConfig) {
      kept_events_.push_back({sequence, time_ns, event});
    }
  }
  if (change.device < 0) {
    if (event.kind == EventKind::kOom) failed_allocations_.push_back({sequence, replay.cause_of(event)});
    if (event.kind == EventKind::kRole) roles_.add_named(event, sequence, replay);
    if (event.kind == EventKind::kMemory) add_sample(event, sequence, time_ns, replay);
    if (event.kind >= EventKind::kStep && event.kind <= EventKind::kRegionEnd) {
      add_position(event, sequence, time_ns, replay);
    }
    return LifetimeChange(time_ns);
  }
  if (time_ns >= interval_end_ns_ && points_ > 0) interval_ = interval_at(time_ns);
  const auto device = static_cast<std::size_t>(change.device);
  while (timelines_.size() <= device) timelines_.emplace_back(points_);
  DeviceMemory& memory = replay.devices()[device];
  timelines_[device].record(memory, interval_, sequence, time_ns);
  return LifetimeChange(event, time_ns, device, memory);
}

void RunEvidence::record_lifetimes(const Event& event, std::uint64_t sequence, const LifetimeChange& change) {
  roles_.lifetimes().update(event, sequence);
  if (change.device == LifetimeChange::kNoDevice) return;
  while (long_lifetimes_.size() <= change.device) long_lifetimes_.emplace_back();
  LongLifetimes& lives = long_lifetimes_[change.device];
  if (event.kind == EventKind::kAlloc) {
    const std::uint32_t line = !lines_ ? change.stack : change.stack < lines_->size() ? (*lines_)[change.stack] : 0;
    lives.add_allocation(sequence, change.time_ns, line, event.size);
    loops_.add(event, sequence);
    roles_.lifetimes().begin_lifetime(event, sequence, change);
  } else if (change.alloc_sequence != UINT64_MAX) {
    lives.add_free(change.alloc_sequence, change.stack, change.bytes, sequence);
    roles_.lifetimes().end_lifetime(event, change);
  }
}

// Return the interval of an event after the current interval, and set the new interval's end.
std::size_t RunEvidence::interval_at(std::int64_t time_ns) {
  // Unsigned: the difference of corrupt times may overflow.
  const auto since = static_cast<std::uint64_t>(time_ns) - static_cast<std::uint64_t>(begin_ns_);
  if (for_compaction_) {
    const std::uint64_t later = since >> 63 != 0 ? 0 : since;
    while (later >> interval_shift_ >= kMaxCompactedIntervals) {
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

void RunEvidence::add_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay) {
  const PositionFields fields(event);
  PositionEvent position{event.kind, sequence, time_ns, fields.value, fields.is_explicit != 0, {}, 0};
  position.live_bytes.reserve(replay.devices().size());
  for (const DeviceMemory& device : replay.devices()) position.live_bytes.push_back(device.totals().requested);
  if (event.kind == EventKind::kStep) position.ordinal = position.is_reported ? steps_reported_++ : steps_inferred_++;
  positions_.push_back(std::move(position));
}

void RunEvidence::add_sample(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay) {
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
  // A device whose states were all corrupt has no timeline so far.
  while (timelines_.size() < end.devices().size()) timelines_.emplace_back(points_);
  while (long_lifetimes_.size() < timelines_.size()) long_lifetimes_.emplace_back();
  for (LongLifetimes& lives : long_lifetimes_) lives.finish();
  roles_.finish(end);
  // Nothing was reserved before a device's first event, unless it was in use when the recording began.
  for (MemorySample& sample : samples_) {
    if (!sample.is_early) continue;
    const DeviceMemory* const memory = end.find(sample.device_type, sample.device_index);
    if (!memory || !memory->reports_segments()) continue;
    const auto device = static_cast<std::size_t>(memory - end.devices().data());
    if (!end.was_in_use(device)) sample.reserved = 0;
  }
}

std::vector<std::uint64_t> RunEvidence::snapshot_positions() const {
  std::vector<std::uint64_t> events;
  for (const MemoryTimeline& timeline : timelines_) {
    for (const MemoryTimeline::Peak& peak : {timeline.allocated_peak(), timeline.reserved_peak()}) {
      if (peak.bytes != 0) events.push_back(peak.sequence + 1);
    }
  }
  for (const LongLifetimes& lives : long_lifetimes_) {
    if (lives.begins().empty()) continue;
    events.push_back(lives.begins().back());
    events.push_back(lives.last_allocation() + 1);
  }
  for (auto position = positions_.rbegin(); position != positions_.rend(); ++position) {
    if (position->kind != EventKind::kStep) continue;
    events.push_back(position->sequence + 1);
    for (const LongLifetimes& lives : long_lifetimes_) {
      const std::vector<std::uint64_t>& begins = lives.begins();
      const auto later = std::upper_bound(begins.begin(), begins.end(), position->sequence);
      if (later != begins.begin()) events.push_back(*std::prev(later));
    }
    break;
  }
  // The last failed allocation of each device, which the verdict explains.
  constexpr std::size_t kMaxFailures = 8;
  std::set<std::pair<std::int32_t, std::int32_t>> failed_devices;
  for (auto failed = kept_events_.rbegin(); failed != kept_events_.rend() && failed_devices.size() < kMaxFailures;
       ++failed) {
    if (failed->event.kind != EventKind::kOom) continue;
    const Location& where = definitions_->location(failed->event.location);
    if (failed_devices.emplace(where.device_type, where.device_index).second) events.push_back(failed->sequence);
  }
  std::vector<std::uint64_t> scans;
  for (const HolderRecord& holder : definitions_->holders()) {
    if (!holder.addresses.empty()) scans.push_back(holder.event);
  }
  std::sort(scans.begin(), scans.end(), std::greater<>());
  scans.erase(std::unique(scans.begin(), scans.end()), scans.end());
  // The object scans that a verdict examines: see _select_scans in analysis/leaks/referrers.py.
  constexpr std::size_t kMaxScans = 8;
  std::size_t selected = 0;
  double last_interval = -1;
  for (const std::uint64_t scan : scans) {
    const double interval = std::floor(std::log(static_cast<double>(scan + 1)) / std::log(4.0 / 3));
    if (interval == last_interval) continue;
    last_interval = interval;
    if (++selected > kMaxScans) break;
    events.push_back(scan);
  }
  std::sort(events.begin(), events.end());
  events.erase(std::unique(events.begin(), events.end()), events.end());
  return events;
}

void EventTimes::halve() {
  while (times_.size() > kMaxTimes / 2) {
    ++shift_;
    std::size_t size = 0;
    for (const auto& time : times_) {
      if (size == 0 || times_[size - 1].first >> shift_ != time.first >> shift_) times_[size++] = time;
    }
    times_.resize(size);
  }
}

}  // namespace alloctrace
