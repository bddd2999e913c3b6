// RunEvidence in the compacted part of a trace. Series are downsampled so that compacting twice equals compacting once:
// steps and samples to multiples of a power of two, others to their first and last items.
#include <algorithm>
#include <map>

#include "kept_event_codec.h"
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

void put_kept(CompactionWriter& out, const KeptEvent& kept) {
  out.number(kept.sequence);
  out.signed_number(kept.time_ns);
  put_event(out, kept.event);
}

KeptEvent read_kept(CompactionReader& in) {
  const std::uint64_t sequence = in.below(kMaxSequence);
  const std::int64_t time_ns = in.signed_number();
  return {sequence, time_ns, read_event(in)};
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

void RunEvidence::save_positions(CompactionWriter& out) const {
  const std::uint64_t stride = stride_of(steps_reported_, kMaxCompactedSteps),
                      inferred_stride = stride_of(steps_inferred_, kMaxCompactedSteps);
  std::size_t marks = 0, last_step = SIZE_MAX;
  for (std::size_t at = 0; at < positions_.size(); ++at) {
    positions_[at].kind == EventKind::kStep ? last_step = at : ++marks;
  }
  std::vector<const PositionEvent*> selected;
  std::size_t mark = 0;
  for (std::size_t at = 0; at < positions_.size(); ++at) {
    const PositionEvent& position = positions_[at];
    const bool is_selected =
        position.kind == EventKind::kStep
            ? at == last_step || position.ordinal % (position.is_reported ? stride : inferred_stride) == 0
            : is_first_or_last(mark++, marks, kMaxCompactedMarks);
    if (is_selected) selected.push_back(&position);
  }
  out.number(left_out_ + positions_.size() - selected.size());
  out.number(steps_reported_);
  out.number(steps_inferred_);
  out.number(selected.size());
  PositionEvent last{};
  for (const PositionEvent* position : selected) {
    out.byte(static_cast<std::uint8_t>(static_cast<unsigned>(position->kind) << 1 | (position->is_reported ? 1 : 0)));
    out.difference(position->sequence, last.sequence);
    out.difference(static_cast<std::uint64_t>(position->time_ns), static_cast<std::uint64_t>(last.time_ns));
    out.difference(position->value, last.value);
    out.difference(position->ordinal, last.ordinal);
    out.number(position->live_bytes.size());
    for (std::size_t device = 0; device < position->live_bytes.size(); ++device) {
      out.difference(position->live_bytes[device], device < last.live_bytes.size() ? last.live_bytes[device] : 0);
    }
    last = *position;
  }
}

void RunEvidence::restore_positions(CompactionReader& in) {
  left_out_ = in.number();
  steps_reported_ = in.below(kMaxSequence);
  steps_inferred_ = in.below(kMaxSequence);
  PositionEvent last{};
  for (std::size_t left = in.count(6); left > 0; --left) {
    const std::uint8_t first = in.byte();
    last.kind = static_cast<EventKind>(first >> 1);
    last.is_reported = (first & 1) != 0;
    if (last.kind < EventKind::kStep || last.kind > EventKind::kRegionEnd) throw DecodeError("a position of no kind");
    const std::uint64_t before = last.sequence;
    last.sequence = in.difference(before);
    if ((!positions_.empty() && last.sequence <= before) || last.sequence > kMaxSequence) {
      throw DecodeError("positions that are not in order");
    }
    last.time_ns = static_cast<std::int64_t>(in.difference(static_cast<std::uint64_t>(last.time_ns)));
    last.value = in.difference(last.value);
    last.ordinal = in.difference(last.ordinal);
    const std::uint64_t devices = in.below(kMaxDevices + 1);
    std::vector<std::uint64_t> live(devices);
    for (std::size_t device = 0; device < devices; ++device) {
      live[device] = in.difference(device < last.live_bytes.size() ? last.live_bytes[device] : 0);
    }
    last.live_bytes = std::move(live);
    positions_.push_back(last);
  }
}

void RunEvidence::save(CompactionWriter& out, const Replay& replay, const std::vector<Roles::Key>& past) const {
  for (const std::uint64_t count : kind_counts_) out.number(count);
  for (const std::uint64_t count : {findings_.states, findings_.agreeing, findings_.resumed, findings_.void_states,
                                    findings_.contradictions, findings_.after_loss}) {
    out.number(count);
  }
  put_items(out, findings_.differences);
  put_items(out, findings_.kept_contradictions);
  out.number(interval_shift_);
  out.number(timelines_.size());
  for (std::size_t device = 0; device < timelines_.size(); ++device) {
    out.section([&](CompactionWriter& inner) { timelines_[device].save(inner); });
    out.section([&](CompactionWriter& inner) { long_lives_[device].save(inner); });
  }
  out.section([&](CompactionWriter& inner) { loops_.save(inner); });
  out.section([&](CompactionWriter& inner) { roles_.save(inner, replay, past); });
  out.section([&](CompactionWriter& inner) { save_positions(inner); });
  const auto put_ends = [&](const auto& all, auto put) {
    out.number(std::min(all.size(), kMaxCompactedEvents));
    for (std::size_t at = 0; at < all.size(); ++at) {
      if (is_first_or_last(at, all.size(), kMaxCompactedEvents)) put(all[at]);
    }
  };
  put_ends(failed_allocations_, [&](const FailedAllocation& failed) {
    out.number(failed.sequence);
    out.stack(failed.forward_stack);
  });
  for (const EventKind kind : {EventKind::kOom, EventKind::kConfig}) {
    std::vector<KeptEvent> of_kind;
    std::copy_if(kept_events_.begin(), kept_events_.end(), std::back_inserter(of_kind),
                 [&](const KeptEvent& kept) { return kept.event.kind == kind; });
    put_ends(of_kind, [&](const KeptEvent& kept) { put_kept(out, kept); });
  }
  out.section([&](CompactionWriter& inner) { times_.save(inner); });
  // Downsample per device, and keep the last sample of each.
  std::map<std::pair<std::int32_t, std::int32_t>, std::uint64_t> counts;
  std::map<std::pair<std::int32_t, std::int32_t>, const MemorySample*> last_of;
  for (const MemorySample& sample : samples_) {
    counts[{sample.device_type, sample.device_index}] = sample.ordinal + 1;
    last_of[{sample.device_type, sample.device_index}] = &sample;
  }
  std::vector<const MemorySample*> selected;
  for (const MemorySample& sample : samples_) {
    const std::pair device(sample.device_type, sample.device_index);
    if (sample.ordinal % stride_of(counts[device], kMaxCompactedSamples) == 0 || last_of[device] == &sample) {
      selected.push_back(&sample);
    }
  }
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

// Skip what save() writes before the sums, and between them.
CompactedSums RunEvidence::read_sums(CompactionReader& in) {
  constexpr std::size_t kFindings = 6;
  CompactedSums sums;
  for (std::size_t left = kKindNumbers + kFindings; left > 0; --left) in.number();
  for (int list = 0; list < 2; ++list) read_items(in, kMaxDevices);
  in.number();
  for (std::uint64_t left = in.below(kMaxDevices + 1); left > 0; --left) {
    MemoryTimeline timeline(0);
    CompactionReader levels = in.section();
    timeline.restore(levels, kMaxCompactedIntervals, [](const MemoryTimeline::Interval&) {});
    in.section();
    sums.peaks.emplace_back(timeline.allocated_peak(), timeline.reserved_peak());
  }
  in.section();
  in.section();
  CompactionReader positions = in.section();
  positions.number();
  sums.steps_reported = positions.below(kMaxSequence);
  sums.steps_inferred = positions.below(kMaxSequence);
  return sums;
}

void RunEvidence::restore(CompactionReader& in, const Replay& replay, std::int64_t until_ns) {
  const std::size_t devices = replay.devices().size();
  for (std::uint64_t& count : kind_counts_) count = in.number();
  for (std::uint64_t* count : {&findings_.states, &findings_.agreeing, &findings_.resumed, &findings_.void_states,
                               &findings_.contradictions, &findings_.after_loss}) {
    *count = in.number();
  }
  findings_.differences = read_items(in, devices);
  findings_.kept_contradictions = read_items(in, devices);
  const auto shift = static_cast<unsigned>(in.below(63));
  compacted_interval_ns_ = std::int64_t{1} << shift;
  interval_shift_ = shift;
  const std::uint64_t timelines = in.below(devices + 1);
  for (std::uint64_t device = 0; device < timelines; ++device) {
    MemoryTimeline& timeline = timelines_.emplace_back(points_);
    CompactionReader levels = in.section();
    timeline.restore(levels, kMaxCompactedIntervals, [&](const MemoryTimeline::Interval& interval) {
      if (points_ == 0) return;
      if (for_compaction_) return timeline.add(interval);
      // If the shown intervals are shorter than the saved ones, several show the same values.
      const std::uint64_t number = interval.number;
      if (number > static_cast<std::uint64_t>(INT64_MAX) >> shift) return;
      const auto since = static_cast<std::int64_t>(number << shift);
      if (since > INT64_MAX - compacted_interval_ns_) return;
      const auto at = [&](std::int64_t since_ns) {
        const double share = static_cast<double>(since_ns) / static_cast<double>(span_ns_);
        return static_cast<std::size_t>(
            std::clamp(share * static_cast<double>(points_), 0.0, static_cast<double>(points_ - 1)));
      };
      // Modulo 2^64: a time of a corrupt trace may be anything.
      const auto length = static_cast<std::uint64_t>(until_ns) - static_cast<std::uint64_t>(begin_ns_);
      const std::int64_t compacted_end = std::max(static_cast<std::int64_t>(length), since);
      const std::size_t last = at(std::min(since + compacted_interval_ns_ - 1, compacted_end));
      MemoryTimeline::Interval shown = interval;
      for (shown.number = at(since); shown.number <= last; ++shown.number) timeline.add(shown);
    });
    LongLifetimes& lives = long_lives_.emplace_back();
    CompactionReader evidence = in.section();
    const auto line_of = [&](std::uint32_t stack) {
      return !lines_ ? stack : stack < lines_->size() ? (*lines_)[stack] : 0;
    };
    lives.restore(evidence, line_of);
    const std::vector<StackTotals>& stacks = replay.devices()[device].stacks();
    for (std::uint32_t stack = 0; stack < stacks.size(); ++stack) {
      if (stacks[stack].allocations != 0) lives.raise_largest(line_of(stack), stacks[stack].largest);
    }
  }
  CompactionReader loops = in.section();
  loops_.restore(loops);
  CompactionReader roles = in.section();
  roles_.restore(roles, replay);
  CompactionReader positions = in.section();
  restore_positions(positions);
  for (std::size_t left = in.count(2); left > 0; --left) {
    FailedAllocation& failed = failed_allocations_.emplace_back();
    failed.sequence = in.below(kMaxSequence);
    failed.forward_stack = in.stack();
  }
  for (int kind = 0; kind < 2; ++kind) {
    for (std::size_t left = in.count(13); left > 0; --left) kept_events_.push_back(read_kept(in));
  }
  std::sort(kept_events_.begin(), kept_events_.end(),
            [](const KeptEvent& a, const KeptEvent& b) { return a.sequence < b.sequence; });
  CompactionReader times = in.section();
  times_.restore(times);
  for (std::size_t left = in.count(11); left > 0; --left) {
    MemorySample& sample = samples_.emplace_back();
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

}  // namespace alloctrace
