// What a replay measures over time: for each of many equal intervals the lowest, the highest and the last value of each
// measure, so that no peak is lost.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

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
    Measures last{}, lowest{}, highest{};
    std::uint64_t highest_sequence = 0;  // of the event that reached the most allocated bytes
    bool seen = false;

    // Takes in what came after it.
    void add(const Interval& later) {
      if (!later.seen) return;
      if (!seen) {
        *this = later;
        return;
      }
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

  explicit MemoryTimeline(std::size_t points) : intervals_(points) {}

  void note(DeviceMemory& memory, std::size_t interval, std::uint64_t sequence, std::int64_t time_ns) {
    const Measures now = measure(memory);
    raise(allocated_peak_, now[kAllocated], sequence, time_ns);
    raise(reserved_peak_, now[kReserved], sequence, time_ns);
    if (intervals_.empty()) return;
    Interval& at = intervals_[interval];
    if (!at.seen) {
      at.seen = true;
      at.lowest = at.highest = last_;  // the level at which the interval began belongs to it
    }
    if (now[kAllocated] > at.highest[kAllocated]) at.highest_sequence = sequence;
    for (std::size_t i = 0; i < kMeasureCount; ++i) {
      at.lowest[i] = now[i] < at.lowest[i] ? now[i] : at.lowest[i];
      at.highest[i] = now[i] > at.highest[i] ? now[i] : at.highest[i];
    }
    at.last = last_ = now;
  }

  // An interval without events repeats the end of the one before it.
  void fill_holes() {
    Measures before{};
    for (Interval& at : intervals_) {
      if (!at.seen) at.last = at.lowest = at.highest = before;
      before = at.last;
    }
  }

  // Each two intervals become one: for a run that may go on for ever.
  void halve() {
    for (std::size_t at = 0; at < intervals_.size(); ++at) {
      Interval merged;
      if (2 * at < intervals_.size()) merged = intervals_[2 * at];
      if (2 * at + 1 < intervals_.size()) merged.add(intervals_[2 * at + 1]);
      intervals_[at] = merged;
    }
  }

  void save(FoldWriter& fold) const;
  // Of at most so many intervals. place(index, interval): takes each that was saved, in order.
  void restore(FoldReader& fold, std::uint64_t intervals,
               const std::function<void(std::uint64_t, const Interval&)>& place);
  // What happened in a part of the run that is not known as exactly as the rest.
  void add(std::size_t interval, const Interval& what) {
    if (interval < intervals_.size()) intervals_[interval].add(what);
  }

  const std::vector<Interval>& intervals() const { return intervals_; }
  const Peak& allocated_peak() const { return allocated_peak_; }
  const Peak& reserved_peak() const { return reserved_peak_; }

 private:
  static void raise(Peak& peak, std::uint64_t bytes, std::uint64_t sequence, std::int64_t time_ns) {
    if (bytes > peak.bytes) peak = {bytes, sequence, time_ns};
  }

  std::vector<Interval> intervals_;
  Measures last_{};
  Peak allocated_peak_, reserved_peak_;
};

}  // namespace alloctrace
