// Conversion of the counter values in events to wall time, through the clock anchors of the blocks. Times follow the
// monotonic clock: they do not jump when the wall clock is set while the program runs.
#pragma once

#include <cstdint>

#include "../base/clock.h"

namespace alloctrace {

// Conversion within one chunk of events.
struct ChunkClock {
  std::uint64_t begin_counter = 0, begin_ns = 0;
  double slope = 1.0;  // ns per count
  // Return a time in ns since 1970. A counter in a corrupt trace may be any number, and so may the time.
  std::int64_t wall_ns(std::uint64_t counter) const;
};

class TraceClock {
 public:
  // default_slope: ns per count until two anchors are known.
  explicit TraceClock(double default_slope = 1.0) : slope_(default_slope) {}

  // Add the anchor of a block or spool. An anchor without a time, or an impossible one, is ignored: those of a spool
  // have no checksum.
  void add(const ClockAnchor& anchor);
  const ClockAnchor& first() const { return first_; }
  const ClockAnchor& last() const { return last_; }
  // Return the conversion for events between two anchors.
  ChunkClock between(const ClockAnchor& begin, const ClockAnchor& end) const;
  // Return the wall time of the first and the last anchor, in ns since 1970.
  std::int64_t begin_ns() const { return static_cast<std::int64_t>(first_.wall_ns); }
  std::int64_t end_ns() const { return static_cast<std::int64_t>(wall_ns_of(last_)); }

 private:
  std::uint64_t wall_ns_of(const ClockAnchor& anchor) const {
    return first_.wall_ns + (anchor.monotonic_ns - first_.monotonic_ns);
  }

  ClockAnchor first_{}, last_{};
  double slope_;  // over all anchors
};

}  // namespace alloctrace
