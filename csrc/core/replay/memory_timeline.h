// What a replay measures over time: for each of many equal intervals the lowest, the highest and the last value of each
// measure, so that no peak is lost. Only intervals with events are kept: a short trace takes little memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>

#include "device_memory.h"
#include "fold_codec.h"

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

// The timeline of one device.
class MemoryTimeline {
 public:
  struct Interval {
    std::size_t number = 0;
    Measures last{}, lowest{}, highest{};
    std::uint64_t highest_sequence = 0;  // of the event that reached the most allocated bytes

    // Takes in what came after it.
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

  // points: how many intervals there are.
  explicit MemoryTimeline(std::size_t points) : points_(points) {}

  void note(DeviceMemory& memory, std::size_t interval, std::uint64_t sequence, std::int64_t time_ns) {
    const Measures now = measure(memory);
    raise(allocated_peak_, now[kAllocated], sequence, time_ns);
    raise(reserved_peak_, now[kReserved], sequence, time_ns);
    if (points_ == 0) return;
    if (intervals_.empty() || interval > intervals_.back().number) {
      // The level at which the interval began belongs to it.
      intervals_.push_back({interval, last_, last_, last_});
    }
    Interval& at = intervals_.back();  // also where time went back, in a damaged trace
    if (now[kAllocated] > at.highest[kAllocated]) at.highest_sequence = sequence;
    for (std::size_t i = 0; i < kMeasureCount; ++i) {
      at.lowest[i] = now[i] < at.lowest[i] ? now[i] : at.lowest[i];
      at.highest[i] = now[i] > at.highest[i] ? now[i] : at.highest[i];
    }
    at.last = last_ = now;
  }

  // The intervals from `begin` on and before `end` as one. Without events it repeats the end of those before it.
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

  // The highest value of a measure; 0 where no intervals are kept.
  std::uint64_t most(Measure measure) const {
    std::uint64_t most = 0;
    for (const Interval& at : intervals_) most = std::max(most, at.highest[measure]);
    return most;
  }

  // Each two intervals become one: for a run that may go on for ever.
  void halve() {
    std::deque<Interval> before;
    before.swap(intervals_);
    for (Interval& at : before) {
      at.number /= 2;
      add(at);
    }
  }

  void save(FoldWriter& fold) const;
  // Of at most so many intervals. place: takes each that was saved, in order.
  void restore(FoldReader& fold, std::uint64_t intervals, const std::function<void(const Interval&)>& place);
  // What happened after all that was added or noted before, or in the last interval of it.
  void add(const Interval& what) {
    if (what.number >= points_) return;
    if (intervals_.empty() || what.number > intervals_.back().number) {
      intervals_.push_back(what);
    } else {
      intervals_.back().add(what);
    }
  }

  const Peak& allocated_peak() const { return allocated_peak_; }
  const Peak& reserved_peak() const { return reserved_peak_; }

 private:
  static void raise(Peak& peak, std::uint64_t bytes, std::uint64_t sequence, std::int64_t time_ns) {
    if (bytes > peak.bytes) peak = {bytes, sequence, time_ns};
  }

  std::size_t points_;
  std::deque<Interval> intervals_;  // those with events, by number
  Measures last_{};
  Peak allocated_peak_, reserved_peak_;
};

}  // namespace alloctrace
