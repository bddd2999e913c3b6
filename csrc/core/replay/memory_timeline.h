// Memory of a device over time: lowest, highest and last value of each measure in each of many equal intervals, so that
// no peak is lost. Only intervals with events are stored.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>

#include "../format/compaction_codec.h"
#include "device_memory.h"

namespace alloctrace {

enum Measure : std::size_t {
  kRequested,
  kAllocated,
  kActive,
  kReserved,
  kReleasable,
  kStranded,
  kLargestFree,
  kBlocks
};
constexpr std::size_t kMeasureCount = 8;
using Measures = std::array<std::uint64_t, kMeasureCount>;

inline Measures measure(DeviceMemory& memory) {
  const MemoryTotals& totals = memory.totals();
  return {totals.requested,  totals.allocated,  totals.active,         totals.reserved,
          totals.releasable, totals.stranded(), memory.largest_free(), totals.blocks};
}

class MemoryTimeline {
 public:
  struct Interval {
    std::size_t number = 0;
    Measures last{}, lowest{}, highest{};
    std::uint64_t highest_sequence = 0;  // event with the highest allocated bytes

    void add(const Interval& later) {
      if (later.highest[kAllocated] > highest[kAllocated]) highest_sequence = later.highest_sequence;
      for (std::size_t i = 0; i < kMeasureCount; ++i) {
        lowest[i] = later.lowest[i] < lowest[i] ? later.lowest[i] : lowest[i];
        highest[i] = later.highest[i] > highest[i] ? later.highest[i] : highest[i];
      }
      last = later.last;
    }
  };
  struct Peak {
    std::uint64_t bytes = 0, sequence = 0;
    std::int64_t time_ns = 0;
  };

  // `points`: number of intervals.
  explicit MemoryTimeline(std::size_t points) : points_(points) {}

  void record(DeviceMemory& memory, std::size_t interval, std::uint64_t sequence, std::int64_t time_ns) {
    const Measures now = measure(memory);
    raise_peak(allocated_peak_, now[kAllocated], sequence, time_ns);
    raise_peak(reserved_peak_, now[kReserved], sequence, time_ns);
    if (points_ == 0) return;
    if (intervals_.empty() || interval > intervals_.back().number) {
      // An interval includes the level at its begin.
      intervals_.push_back({interval, last_, last_, last_});
    }
    Interval& at = intervals_.back();  // also if time went back, in a corrupt trace
    if (now[kAllocated] > at.highest[kAllocated]) at.highest_sequence = sequence;
    for (std::size_t i = 0; i < kMeasureCount; ++i) {
      at.lowest[i] = now[i] < at.lowest[i] ? now[i] : at.lowest[i];
      at.highest[i] = now[i] > at.highest[i] ? now[i] : at.highest[i];
    }
    at.last = last_ = now;
  }

  // Merge the intervals [begin, end) into one; without events, repeat the last value before them.
  Interval between(std::size_t begin, std::size_t end) const {
    auto at = std::lower_bound(intervals_.begin(), intervals_.end(), begin,
                               [](const Interval& interval, std::size_t number) { return interval.number < number; });
    if (at == intervals_.end() || at->number >= end) {
      const Measures level = at == intervals_.begin() ? Measures{} : std::prev(at)->last;
      return {begin, level, level, level};
    }
    Interval all = *at;
    for (++at; at != intervals_.end() && at->number < end; ++at) all.add(*at);
    return all;
  }

  std::uint64_t maximum_of(Measure measure) const {
    std::uint64_t maximum = 0;
    for (const Interval& at : intervals_) maximum = std::max(maximum, at.highest[measure]);
    return maximum;
  }

  // Merge each two intervals, so that a run of any length fits.
  void halve() {
    std::deque<Interval> old;
    old.swap(intervals_);
    for (Interval& at : old) {
      at.number /= 2;
      add(at);
    }
  }

  void save(CompactionWriter& out) const;
  // Call `visit` for each saved interval, in order; throw DecodeError if a number is not below `intervals`.
  void restore(CompactionReader& in, std::uint64_t intervals, const std::function<void(const Interval&)>& visit);
  // Append an interval, or merge it into the last one if their numbers are equal.
  void add(const Interval& interval) {
    if (interval.number >= points_) return;
    if (intervals_.empty() || interval.number > intervals_.back().number) {
      intervals_.push_back(interval);
    } else {
      intervals_.back().add(interval);
    }
  }

  const Peak& allocated_peak() const { return allocated_peak_; }
  const Peak& reserved_peak() const { return reserved_peak_; }

 private:
  static void raise_peak(Peak& peak, std::uint64_t bytes, std::uint64_t sequence, std::int64_t time_ns) {
    if (bytes > peak.bytes) peak = {bytes, sequence, time_ns};
  }

  std::size_t points_;
  std::deque<Interval> intervals_;  // those with events, by number
  Measures last_{};
  Peak allocated_peak_, reserved_peak_;
};

}  // namespace alloctrace
