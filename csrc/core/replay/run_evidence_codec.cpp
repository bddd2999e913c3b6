// RunEvidence in the compacted part of a trace. Series are downsampled so that compacting twice equals compacting once:
// steps and samples to multiples of a power of two, others to their first and last items.
#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "run_evidence.h"

namespace alloctrace {
namespace {

std::uint64_t stride_of(std::uint64_t count, std::size_t max_count) {
  std::uint64_t stride = 1;
  while (count / stride > max_count) stride *= 2;
  return stride;
}

// Return whether an item is among the first or the last `max_count` / 2 items.
bool is_first_or_last(std::size_t index, std::size_t count, std::size_t max_count) {
  return index < max_count / 2 || index + max_count / 2 >= count;
}

// Write the first and last items of a list.
template <typename Item, typename Put>
void put_ends(CompactionWriter& out, const std::vector<Item>& items, Put put) {
  out.number(std::min(items.size(), RunEvidence::kMaxCompactedEvents));
  for (std::size_t index = 0; index < items.size(); ++index) {
    if (is_first_or_last(index, items.size(), RunEvidence::kMaxCompactedEvents)) put(items[index]);
  }
}

void put_items(CompactionWriter& out, const std::vector<ReplayFindings::Item>& items) {
  out.number(items.size());
  for (const ReplayFindings::Item& item : items) {
    out.number(item.sequence);
    out.number(item.device);
    out.text(item.text);
  }
}

std::vector<ReplayFindings::Item> read_items(CompactionReader& in, std::size_t devices) {
  std::vector<ReplayFindings::Item> items;
  const std::size_t count = in.count(3);
  if (count > ReplayFindings::kMaxItems) throw DecodeError("too many findings");
  for (std::size_t index = 0; index < count; ++index) {
    const std::uint64_t sequence = in.number();
    const std::uint64_t device = in.below(devices);
    items.push_back({sequence, static_cast<std::size_t>(device), std::string(in.text())});
  }
  return items;
}

void put_findings(CompactionWriter& out, const ReplayFindings& findings) {
  for (const std::uint64_t count : {findings.states, findings.agreeing, findings.resumed, findings.void_states,
                                    findings.contradictions, findings.after_loss}) {
    out.number(count);
  }
  put_items(out, findings.differences);
  put_items(out, findings.kept_contradictions);
}

void read_findings(CompactionReader& in, std::size_t devices, ReplayFindings& findings) {
  for (std::uint64_t* count : {&findings.states, &findings.agreeing, &findings.resumed, &findings.void_states,
                               &findings.contradictions, &findings.after_loss}) {
    *count = in.number();
  }
  findings.differences = read_items(in, devices);
  findings.kept_contradictions = read_items(in, devices);
}

// Write a position as its difference from the one before.
void put_position(CompactionWriter& out, const PositionEvent& position, const PositionEvent& before) {
  out.byte(static_cast<std::uint8_t>(static_cast<unsigned>(position.kind) << 1 | (position.is_reported ? 1 : 0)));
  out.difference(position.sequence, before.sequence);
  out.difference(static_cast<std::uint64_t>(position.time_ns), static_cast<std::uint64_t>(before.time_ns));
  out.difference(position.value, before.value);
  out.difference(position.ordinal, before.ordinal);
  out.number(position.live_bytes.size());
  for (std::size_t device = 0; device < position.live_bytes.size(); ++device) {
    out.difference(position.live_bytes[device], device < before.live_bytes.size() ? before.live_bytes[device] : 0);
  }
}

// Read the position that follows `earlier`.
PositionEvent read_position(CompactionReader& in, const std::vector<PositionEvent>& earlier) {
  const PositionEvent before = earlier.empty() ? PositionEvent{} : earlier.back();
  PositionEvent position{};
  const std::uint8_t first = in.byte();
  position.kind = static_cast<EventKind>(first >> 1);
  position.is_reported = (first & 1) != 0;
  if (position.kind < EventKind::kStep || position.kind > EventKind::kRegionEnd) {
    throw DecodeError("a position of no kind");
  }
  position.sequence = in.difference(before.sequence);
  if ((!earlier.empty() && position.sequence <= before.sequence) || position.sequence > kMaxSequence) {
    throw DecodeError("positions that are not in order");
  }
  position.time_ns = static_cast<std::int64_t>(in.difference(static_cast<std::uint64_t>(before.time_ns)));
  position.value = in.difference(before.value);
  position.ordinal = in.difference(before.ordinal);
  position.live_bytes.resize(static_cast<std::size_t>(in.below(kMaxDevices + 1)));
  for (std::size_t device = 0; device < position.live_bytes.size(); ++device) {
    position.live_bytes[device] = in.difference(device < before.live_bytes.size() ? before.live_bytes[device] : 0);
  }
  return position;
}

void put_failed_allocations(CompactionWriter& out, const std::vector<FailedAllocation>& failed_allocations) {
  put_ends(out, failed_allocations, [&](const FailedAllocation& failed) {
    out.number(failed.sequence);
    out.stack(failed.forward_stack);
  });
}

void read_failed_allocations(CompactionReader& in, std::vector<FailedAllocation>& failed_allocations) {
  for (std::size_t left = in.count(2); left > 0; --left) {
    FailedAllocation& failed = failed_allocations.emplace_back();
    failed.sequence = in.below(kMaxSequence);
    failed.forward_stack = in.stack();
  }
}

// Kinds of the events that are kept, in the order of their lists.
constexpr std::array kKeptKinds{EventKind::kOom, EventKind::kConfig};

void put_kept_events(CompactionWriter& out, const std::vector<KeptEvent>& kept_events) {
  for (const EventKind kind : kKeptKinds) {
    std::vector<KeptEvent> of_kind;
    std::copy_if(kept_events.begin(), kept_events.end(), std::back_inserter(of_kind),
                 [&](const KeptEvent& kept) { return kept.event.kind == kind; });
    put_ends(out, of_kind, [&](const KeptEvent& kept) {
      out.number(kept.sequence);
      out.signed_number(kept.time_ns);
      put_event(out, kept.event);
    });
  }
}

void read_kept_events(CompactionReader& in, std::vector<KeptEvent>& kept_events) {
  for (std::size_t list = 0; list < kKeptKinds.size(); ++list) {
    for (std::size_t left = in.count(13); left > 0; --left) {
      KeptEvent& kept = kept_events.emplace_back();
      kept.sequence = in.below(kMaxSequence);
      kept.time_ns = in.signed_number();
      kept.event = read_event(in);
    }
  }
  std::sort(kept_events.begin(), kept_events.end(),
            [](const KeptEvent& a, const KeptEvent& b) { return a.sequence < b.sequence; });
}

// Downsample per device, and keep the last sample of each.
std::vector<const MemorySample*> select_samples(const std::vector<MemorySample>& samples) {
  struct DeviceSamples {
    std::uint64_t count = 0;
    const MemorySample* last = nullptr;
  };
  std::map<std::pair<std::int32_t, std::int32_t>, DeviceSamples> devices;
  for (const MemorySample& sample : samples) {
    devices[{sample.device_type, sample.device_index}] = {sample.ordinal + 1, &sample};
  }
  std::vector<const MemorySample*> selected;
  for (const MemorySample& sample : samples) {
    const DeviceSamples& device = devices[{sample.device_type, sample.device_index}];
    if (sample.ordinal % stride_of(device.count, RunEvidence::kMaxCompactedSamples) == 0 || device.last == &sample) {
      selected.push_back(&sample);
    }
  }
  return selected;
}

void put_samples(CompactionWriter& out, const std::vector<MemorySample>& samples) {
  const std::vector<const MemorySample*> selected = select_samples(samples);
  out.number(selected.size());
  for (const MemorySample* sample : selected) {
    out.number(sample->sequence);
    out.signed_number(sample->time_ns);
    out.signed_number(sample->device_type);
    out.signed_number(sample->device_index);
    for (const std::uint64_t bytes :
         {sample->used, sample->total, sample->by_this_process, sample->by_others, sample->reserved}) {
      out.number(bytes + 1);  // unknown becomes 0
    }
    out.flag(sample->is_early);
    out.number(sample->ordinal);
  }
}

void read_samples(CompactionReader& in, std::vector<MemorySample>& samples) {
  for (std::size_t left = in.count(11); left > 0; --left) {
    MemorySample& sample = samples.emplace_back();
    sample.sequence = in.below(kMaxSequence);
    sample.time_ns = in.signed_number();
    sample.device_type = static_cast<std::int32_t>(in.signed_number());
    sample.device_index = static_cast<std::int32_t>(in.signed_number());
    for (std::uint64_t* bytes :
         {&sample.used, &sample.total, &sample.by_this_process, &sample.by_others, &sample.reserved}) {
      *bytes = in.number() - 1;
    }
    sample.is_early = in.flag();
    sample.ordinal = in.below(kMaxSequence);
  }
}

}  // namespace

void EventTimes::save(CompactionWriter& out) const {
  out.number(shift_);
  out.number(times_.size());
  std::uint64_t last = 0, last_ns = 0;
  for (const auto& [sequence, time_ns] : times_) {
    out.difference(sequence, last);
    out.difference(static_cast<std::uint64_t>(time_ns), last_ns);
    last = sequence;
    last_ns = static_cast<std::uint64_t>(time_ns);
  }
}

void EventTimes::restore(CompactionReader& in) {
  shift_ = static_cast<unsigned>(in.below(63));
  const std::uint64_t count = in.below(kMaxTimes);
  std::uint64_t last = 0, last_ns = 0;
  for (std::uint64_t index = 0; index < count; ++index) {
    const std::uint64_t sequence = in.difference(last);
    if ((index != 0 && sequence <= last) || sequence > kMaxSequence) throw DecodeError("events that are not in order");
    last = sequence;
    last_ns = in.difference(last_ns);
    times_.emplace_back(sequence, static_cast<std::int64_t>(last_ns));
  }
  if (!times_.empty()) next_ = ((times_.back().first >> shift_) + 1) << shift_;
}

void RunEvidence::save_timelines(CompactionWriter& out) const {
  out.number(interval_shift_);
  out.number(timelines_.size());
  for (std::size_t device = 0; device < timelines_.size(); ++device) {
    out.section([&](CompactionWriter& inner) { timelines_[device].save(inner); });
    out.section([&](CompactionWriter& inner) { long_lifetimes_[device].save(inner); });
  }
}

void RunEvidence::restore_timelines(CompactionReader& in, const Replay& replay, std::int64_t until_ns) {
  interval_shift_ = static_cast<unsigned>(in.below(63));
  compacted_interval_ns_ = std::int64_t{1} << interval_shift_;
  const std::uint64_t timelines = in.below(replay.devices().size() + 1);
  for (std::uint64_t device = 0; device < timelines; ++device) {
    MemoryTimeline& timeline = timelines_.emplace_back(points_);
    CompactionReader levels = in.section();
    timeline.restore(levels, kMaxCompactedIntervals,
                     [&](const MemoryTimeline::Interval& interval) { add_interval(timeline, interval, until_ns); });
    CompactionReader lifetimes = in.section();
    restore_long_lifetimes(lifetimes, replay.devices()[device].stacks());
  }
}

// Add an interval of the compacted part, which ends at `until_ns`, to a timeline of `points_` intervals.
void RunEvidence::add_interval(MemoryTimeline& timeline, const MemoryTimeline::Interval& interval,
                               std::int64_t until_ns) const {
  if (points_ == 0) return;
  if (for_compaction_) return timeline.add(interval);
  // If the shown intervals are shorter than the saved ones, several show the same values.
  const std::uint64_t number = interval.number;
  if (number > static_cast<std::uint64_t>(INT64_MAX) >> interval_shift_) return;
  const auto since = static_cast<std::int64_t>(number << interval_shift_);
  if (since > INT64_MAX - compacted_interval_ns_) return;
  const auto shown_at = [&](std::int64_t since_ns) {
    const double share = static_cast<double>(since_ns) / static_cast<double>(span_ns_);
    return static_cast<std::size_t>(
        std::clamp(share * static_cast<double>(points_), 0.0, static_cast<double>(points_ - 1)));
  };
  // Modulo 2^64: a time of a corrupt trace may be anything.
  const auto length = static_cast<std::uint64_t>(until_ns) - static_cast<std::uint64_t>(begin_ns_);
  const std::int64_t compacted_end = std::max(static_cast<std::int64_t>(length), since);
  const std::size_t last = shown_at(std::min(since + compacted_interval_ns_ - 1, compacted_end));
  MemoryTimeline::Interval shown = interval;
  for (shown.number = shown_at(since); shown.number <= last; ++shown.number) timeline.add(shown);
}

// Restore the long-lived blocks of the next device, in which each stack has the totals `stacks`.
void RunEvidence::restore_long_lifetimes(CompactionReader& in, const std::vector<StackTotals>& stacks) {
  LongLifetimes& lifetimes = long_lifetimes_.emplace_back();
  const auto line_of = [&](std::uint32_t stack) {
    return !lines_ ? stack : stack < lines_->size() ? (*lines_)[stack] : 0;
  };
  lifetimes.restore(in, line_of);
  for (std::uint32_t stack = 0; stack < stacks.size(); ++stack) {
    if (stacks[stack].allocations != 0) lifetimes.raise_largest(line_of(stack), stacks[stack].largest);
  }
}

// Downsample steps, and keep the last one and the first and last marks and regions.
std::vector<const PositionEvent*> RunEvidence::select_positions() const {
  const std::uint64_t reported_stride = stride_of(steps_reported_, kMaxCompactedSteps);
  const std::uint64_t inferred_stride = stride_of(steps_inferred_, kMaxCompactedSteps);
  const PositionEvent* last_step = nullptr;
  std::size_t marks = 0;
  for (const PositionEvent& position : positions_) {
    if (position.kind == EventKind::kStep) {
      last_step = &position;
    } else {
      ++marks;
    }
  }
  std::vector<const PositionEvent*> selected;
  std::size_t mark = 0;
  for (const PositionEvent& position : positions_) {
    const bool is_selected =
        position.kind == EventKind::kStep
            ? &position == last_step ||
                  position.ordinal % (position.is_reported ? reported_stride : inferred_stride) == 0
            : is_first_or_last(mark++, marks, kMaxCompactedMarks);
    if (is_selected) selected.push_back(&position);
  }
  return selected;
}

void RunEvidence::save_positions(CompactionWriter& out) const {
  const std::vector<const PositionEvent*> selected = select_positions();
  out.number(left_out_ + positions_.size() - selected.size());
  out.number(steps_reported_);
  out.number(steps_inferred_);
  out.number(selected.size());
  const PositionEvent none{};
  const PositionEvent* before = &none;
  for (const PositionEvent* position : selected) {
    put_position(out, *position, *before);
    before = position;
  }
}

void RunEvidence::restore_positions(CompactionReader& in) {
  left_out_ = in.number();
  steps_reported_ = in.below(kMaxSequence);
  steps_inferred_ = in.below(kMaxSequence);
  for (std::size_t left = in.count(6); left > 0; --left) positions_.push_back(read_position(in, positions_));
}

void RunEvidence::save(CompactionWriter& out, const Replay& replay, const std::vector<Roles::Key>& past) const {
  for (const std::uint64_t count : kind_counts_) out.number(count);
  put_findings(out, findings_);
  save_timelines(out);
  out.section([&](CompactionWriter& inner) { loops_.save(inner); });
  out.section([&](CompactionWriter& inner) { roles_.save(inner, replay, past); });
  out.section([&](CompactionWriter& inner) { save_positions(inner); });
  put_failed_allocations(out, failed_allocations_);
  put_kept_events(out, kept_events_);
  out.section([&](CompactionWriter& inner) { times_.save(inner); });
  put_samples(out, samples_);
}

void RunEvidence::restore(CompactionReader& in, const Replay& replay, std::int64_t until_ns) {
  for (std::uint64_t& count : kind_counts_) count = in.number();
  read_findings(in, replay.devices().size(), findings_);
  restore_timelines(in, replay, until_ns);
  CompactionReader loops = in.section();
  loops_.restore(loops);
  CompactionReader roles = in.section();
  roles_.restore(roles, replay);
  CompactionReader positions = in.section();
  restore_positions(positions);
  read_failed_allocations(in, failed_allocations_);
  read_kept_events(in, kept_events_);
  CompactionReader times = in.section();
  times_.restore(times);
  read_samples(in, samples_);
}

// Read only the sums of what save() writes, up to the last of them.
CompactedSums RunEvidence::read_sums(CompactionReader& in) {
  CompactedSums sums;
  for (std::size_t kind = 0; kind < kKindNumbers; ++kind) in.number();
  ReplayFindings findings;
  read_findings(in, kMaxDevices, findings);
  in.number();  // the shift of the intervals
  for (std::uint64_t left = in.below(kMaxDevices + 1); left > 0; --left) {
    MemoryTimeline timeline(0);
    CompactionReader levels = in.section();
    timeline.restore(levels, kMaxCompactedIntervals, [](const MemoryTimeline::Interval&) {});
    in.section();  // long lifetimes
    sums.peaks.emplace_back(timeline.allocated_peak(), timeline.reserved_peak());
  }
  in.section();  // loops
  in.section();  // roles
  CompactionReader positions = in.section();
  positions.number();  // positions left out
  sums.steps_reported = positions.below(kMaxSequence);
  sums.steps_inferred = positions.below(kMaxSequence);
  return sums;
}

}  // namespace alloctrace
