// What a pass has gathered, in a fold. What there may be any number of is thinned in such a way that folding twice
// leaves the same as folding once: of the steps and samples those at multiples of a power of two, of the rest the first
// and the last ones.
#include <algorithm>
#include <map>

#include "fold_events.h"
#include "run_evidence.h"

namespace alloctrace {
namespace {

std::uint64_t stride_of(std::uint64_t count, std::size_t most) {
  std::uint64_t stride = 1;
  while (count / stride > most) stride *= 2;
  return stride;
}

// Which of so many are kept: the first half of `most` and the last.
bool is_at_an_end(std::size_t index, std::size_t count, std::size_t most) {
  return index < most / 2 || index + most / 2 >= count;
}

void put_kept(FoldWriter& fold, const KeptEvent& kept) {
  fold.number(kept.sequence);
  fold.signed_number(kept.time_ns);
  put_event(fold, kept.event);
}

KeptEvent read_kept(FoldReader& fold) {
  const std::uint64_t sequence = fold.below(kMaxSequence);
  const std::int64_t time_ns = fold.signed_number();
  return {sequence, time_ns, read_event(fold)};
}

void put_items(FoldWriter& fold, const std::vector<ReplayFindings::Item>& items) {
  fold.number(items.size());
  for (const ReplayFindings::Item& item : items) {
    fold.number(item.sequence);
    fold.number(item.device);
    fold.text(item.text);
  }
}

std::vector<ReplayFindings::Item> read_items(FoldReader& fold, std::size_t devices) {
  std::vector<ReplayFindings::Item> items;
  const std::size_t count = fold.count(3);
  if (count > ReplayFindings::kMaxItems) throw DecodeError("more findings than are kept");
  for (std::size_t index = 0; index < count; ++index) {
    const std::uint64_t sequence = fold.number();
    const std::uint64_t device = fold.below(devices);
    items.push_back({sequence, static_cast<std::size_t>(device), std::string(fold.text())});
  }
  return items;
}

}  // namespace

void EventTimes::save(FoldWriter& fold) const {
  fold.number(shift_);
  fold.number(times_.size());
  std::uint64_t last = 0, last_ns = 0;
  for (const auto& [sequence, time_ns] : times_) {
    fold.difference(sequence, last);
    fold.difference(static_cast<std::uint64_t>(time_ns), last_ns);
    last = sequence;
    last_ns = static_cast<std::uint64_t>(time_ns);
  }
}

void EventTimes::restore(FoldReader& fold) {
  shift_ = static_cast<unsigned>(fold.below(63));
  const std::uint64_t count = fold.below(kMaxTimes);
  std::uint64_t last = 0, last_ns = 0;
  for (std::uint64_t index = 0; index < count; ++index) {
    const std::uint64_t sequence = fold.difference(last);
    if ((index != 0 && sequence <= last) || sequence > kMaxSequence) throw DecodeError("events that are not in order");
    last = sequence;
    last_ns = fold.difference(last_ns);
    times_.emplace_back(sequence, static_cast<std::int64_t>(last_ns));
  }
  if (!times_.empty()) next_ = ((times_.back().first >> shift_) + 1) << shift_;
}

void RunEvidence::save_positions(FoldWriter& fold) const {
  const std::uint64_t said = stride_of(steps_reported_, kMaxCompactedSteps),
                      inferred = stride_of(steps_inferred_, kMaxCompactedSteps);
  std::size_t marks = 0, last_step = SIZE_MAX;
  for (std::size_t at = 0; at < positions_.size(); ++at) {
    positions_[at].kind == EventKind::kStep ? last_step = at : ++marks;
  }
  std::vector<const PositionEvent*> kept;
  std::size_t mark = 0;
  for (std::size_t at = 0; at < positions_.size(); ++at) {
    const PositionEvent& one = positions_[at];
    const bool is_kept = one.kind == EventKind::kStep
                             ? at == last_step || one.ordinal % (one.is_reported ? said : inferred) == 0
                             : is_at_an_end(mark++, marks, kMaxCompactedMarks);
    if (is_kept) kept.push_back(&one);
  }
  fold.number(left_out_ + positions_.size() - kept.size());
  fold.number(steps_reported_);
  fold.number(steps_inferred_);
  fold.number(kept.size());
  PositionEvent last{};
  for (const PositionEvent* one : kept) {
    fold.byte(static_cast<std::uint8_t>(static_cast<unsigned>(one->kind) << 1 | (one->is_reported ? 1 : 0)));
    fold.difference(one->sequence, last.sequence);
    fold.difference(static_cast<std::uint64_t>(one->time_ns), static_cast<std::uint64_t>(last.time_ns));
    fold.difference(one->value, last.value);
    fold.difference(one->ordinal, last.ordinal);
    fold.number(one->live_bytes.size());
    for (std::size_t device = 0; device < one->live_bytes.size(); ++device) {
      fold.difference(one->live_bytes[device], device < last.live_bytes.size() ? last.live_bytes[device] : 0);
    }
    last = *one;
  }
}

void RunEvidence::restore_positions(FoldReader& fold) {
  left_out_ = fold.number();
  steps_reported_ = fold.below(kMaxSequence);
  steps_inferred_ = fold.below(kMaxSequence);
  PositionEvent last{};
  for (std::size_t left = fold.count(6); left > 0; --left) {
    const std::uint8_t first = fold.byte();
    last.kind = static_cast<EventKind>(first >> 1);
    last.is_reported = (first & 1) != 0;
    if (last.kind < EventKind::kStep || last.kind > EventKind::kRegionEnd) throw DecodeError("a position of no kind");
    const std::uint64_t before = last.sequence;
    last.sequence = fold.difference(before);
    if ((!positions_.empty() && last.sequence <= before) || last.sequence > kMaxSequence) {
      throw DecodeError("positions that are not in order");
    }
    last.time_ns = static_cast<std::int64_t>(fold.difference(static_cast<std::uint64_t>(last.time_ns)));
    last.value = fold.difference(last.value);
    last.ordinal = fold.difference(last.ordinal);
    const std::uint64_t devices = fold.below(kMaxDevices + 1);
    std::vector<std::uint64_t> live(devices);
    for (std::size_t device = 0; device < devices; ++device) {
      live[device] = fold.difference(device < last.live_bytes.size() ? last.live_bytes[device] : 0);
    }
    last.live_bytes = std::move(live);
    positions_.push_back(last);
  }
}

void RunEvidence::save(FoldWriter& fold, const Replay& replay, const std::vector<Roles::Key>& past) const {
  for (const std::uint64_t count : kind_counts_) fold.number(count);
  for (const std::uint64_t count : {findings_.states, findings_.agreeing, findings_.resumed, findings_.void_states,
                                    findings_.contradictions, findings_.after_loss}) {
    fold.number(count);
  }
  put_items(fold, findings_.differences);
  put_items(fold, findings_.kept_contradictions);
  fold.number(interval_shift_);
  fold.number(timelines_.size());
  for (std::size_t device = 0; device < timelines_.size(); ++device) {
    fold.section([&](FoldWriter& inner) { timelines_[device].save(inner); });
    fold.section([&](FoldWriter& inner) { long_lives_[device].save(inner); });
  }
  fold.section([&](FoldWriter& inner) { loops_.save(inner); });
  fold.section([&](FoldWriter& inner) { roles_.save(inner, replay, past); });
  fold.section([&](FoldWriter& inner) { save_positions(inner); });
  const auto put_ends = [&](const auto& all, auto put) {
    fold.number(std::min(all.size(), kMaxCompactedEvents));
    for (std::size_t at = 0; at < all.size(); ++at) {
      if (is_at_an_end(at, all.size(), kMaxCompactedEvents)) put(all[at]);
    }
  };
  put_ends(failed_allocations_, [&](const FailedAllocation& failed) {
    fold.number(failed.sequence);
    fold.stack(failed.forward_stack);
  });
  for (const EventKind kind : {EventKind::kOom, EventKind::kConfig}) {
    std::vector<KeptEvent> of_kind;
    std::copy_if(kept_events_.begin(), kept_events_.end(), std::back_inserter(of_kind),
                 [&](const KeptEvent& kept) { return kept.event.kind == kind; });
    put_ends(of_kind, [&](const KeptEvent& kept) { put_kept(fold, kept); });
  }
  fold.section([&](FoldWriter& inner) { times_.save(inner); });
  // Of each device as many.
  std::map<std::pair<std::int32_t, std::int32_t>, std::uint64_t> counts;
  std::map<std::pair<std::int32_t, std::int32_t>, const MemorySample*> last_of;
  for (const MemorySample& sample : samples_) {
    counts[{sample.device_type, sample.device_index}] = sample.ordinal + 1;
    last_of[{sample.device_type, sample.device_index}] = &sample;
  }
  std::vector<const MemorySample*> kept;
  for (const MemorySample& sample : samples_) {
    const std::pair device(sample.device_type, sample.device_index);
    if (sample.ordinal % stride_of(counts[device], kMaxCompactedSamples) == 0 || last_of[device] == &sample) {
      kept.push_back(&sample);
    }
  }
  fold.number(kept.size());
  for (const MemorySample* sample : kept) {
    fold.number(sample->sequence);
    fold.signed_number(sample->time_ns);
    fold.signed_number(sample->device_type);
    fold.signed_number(sample->device_index);
    for (const std::uint64_t bytes :
         {sample->used, sample->total, sample->by_this_process, sample->by_others, sample->reserved}) {
      fold.number(bytes + 1);  // unknown becomes 0
    }
    fold.flag(sample->is_early);
    fold.number(sample->ordinal);
  }
}

// In the order of save().
CompactedSums RunEvidence::read_sums(FoldReader& fold) {
  constexpr std::size_t kFindings = 6;
  CompactedSums sums;
  for (std::size_t left = kKindNumbers + kFindings; left > 0; --left) fold.number();
  for (int list = 0; list < 2; ++list) read_items(fold, kMaxDevices);
  fold.number();
  for (std::uint64_t left = fold.below(kMaxDevices + 1); left > 0; --left) {
    MemoryTimeline timeline(0);
    FoldReader levels = fold.section();
    timeline.restore(levels, kMaxCompactedIntervals, [](const MemoryTimeline::Interval&) {});
    fold.section();
    sums.peaks.emplace_back(timeline.allocated_peak(), timeline.reserved_peak());
  }
  fold.section();
  fold.section();
  FoldReader positions = fold.section();
  positions.number();
  sums.steps_reported = positions.below(kMaxSequence);
  sums.steps_inferred = positions.below(kMaxSequence);
  return sums;
}

void RunEvidence::restore(FoldReader& fold, const Replay& replay, std::int64_t until_ns) {
  const std::size_t devices = replay.devices().size();
  for (std::uint64_t& count : kind_counts_) count = fold.number();
  for (std::uint64_t* count : {&findings_.states, &findings_.agreeing, &findings_.resumed, &findings_.void_states,
                               &findings_.contradictions, &findings_.after_loss}) {
    *count = fold.number();
  }
  findings_.differences = read_items(fold, devices);
  findings_.kept_contradictions = read_items(fold, devices);
  const auto shift = static_cast<unsigned>(fold.below(63));
  compacted_interval_ns_ = std::int64_t{1} << shift;
  interval_shift_ = shift;
  const std::uint64_t timelines = fold.below(devices + 1);
  for (std::uint64_t device = 0; device < timelines; ++device) {
    MemoryTimeline& timeline = timelines_.emplace_back(points_);
    FoldReader levels = fold.section();
    timeline.restore(levels, kMaxCompactedIntervals, [&](const MemoryTimeline::Interval& interval) {
      if (points_ == 0) return;
      if (for_compaction_) return timeline.add(interval);
      // Where the intervals to be shown are shorter than those that were saved, several show the same.
      const std::uint64_t number = interval.number;
      if (number > static_cast<std::uint64_t>(INT64_MAX) >> shift) return;
      const auto since = static_cast<std::int64_t>(number << shift);
      if (since > INT64_MAX - compacted_interval_ns_) return;
      const auto at = [&](std::int64_t since_ns) {
        const double share = static_cast<double>(since_ns) / static_cast<double>(span_ns_);
        return static_cast<std::size_t>(
            std::clamp(share * static_cast<double>(points_), 0.0, static_cast<double>(points_ - 1)));
      };
      // Modulo 2^64: a damaged time may be anything.
      const auto length = static_cast<std::uint64_t>(until_ns) - static_cast<std::uint64_t>(begin_ns_);
      const std::int64_t folded = std::max(static_cast<std::int64_t>(length), since);
      const std::size_t last = at(std::min(since + compacted_interval_ns_ - 1, folded));
      MemoryTimeline::Interval shown = interval;
      for (shown.number = at(since); shown.number <= last; ++shown.number) timeline.add(shown);
    });
    LongLives& lives = long_lives_.emplace_back();
    FoldReader evidence = fold.section();
    const auto line_of = [&](std::uint32_t stack) {
      return !lines_ ? stack : stack < lines_->size() ? (*lines_)[stack] : 0;
    };
    lives.restore(evidence, line_of);
    const std::vector<StackTotals>& stacks = replay.devices()[device].stacks();
    for (std::uint32_t stack = 0; stack < stacks.size(); ++stack) {
      if (stacks[stack].allocations != 0) lives.raise_largest(line_of(stack), stacks[stack].largest);
    }
  }
  FoldReader loops = fold.section();
  loops_.restore(loops);
  FoldReader roles = fold.section();
  roles_.restore(roles, replay);
  FoldReader positions = fold.section();
  restore_positions(positions);
  for (std::size_t left = fold.count(2); left > 0; --left) {
    FailedAllocation& failed = failed_allocations_.emplace_back();
    failed.sequence = fold.below(kMaxSequence);
    failed.forward_stack = fold.stack();
  }
  for (int kind = 0; kind < 2; ++kind) {
    for (std::size_t left = fold.count(13); left > 0; --left) kept_events_.push_back(read_kept(fold));
  }
  std::sort(kept_events_.begin(), kept_events_.end(),
            [](const KeptEvent& a, const KeptEvent& b) { return a.sequence < b.sequence; });
  FoldReader times = fold.section();
  times_.restore(times);
  for (std::size_t left = fold.count(11); left > 0; --left) {
    MemorySample& sample = samples_.emplace_back();
    sample.sequence = fold.below(kMaxSequence);
    sample.time_ns = fold.signed_number();
    sample.device_type = static_cast<std::int32_t>(fold.signed_number());
    sample.device_index = static_cast<std::int32_t>(fold.signed_number());
    for (std::uint64_t* bytes :
         {&sample.used, &sample.total, &sample.by_this_process, &sample.by_others, &sample.reserved}) {
      *bytes = fold.number() - 1;
    }
    sample.is_early = fold.flag();
    sample.ordinal = fold.below(kMaxSequence);
  }
}

}  // namespace alloctrace
