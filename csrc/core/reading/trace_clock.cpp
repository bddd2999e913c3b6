#include "trace_clock.h"

#include <algorithm>

namespace alloctrace {

std::int64_t ChunkClock::wall_ns(std::uint64_t counter) const {
  constexpr double kLimit = 0x1p62;  // beyond it the conversion to an integer is undefined
  const auto since_begin = static_cast<double>(static_cast<std::int64_t>(counter - begin_counter)) * slope;
  const auto offset = static_cast<std::int64_t>(std::clamp(since_begin, -kLimit, kLimit));
  return static_cast<std::int64_t>(begin_ns + static_cast<std::uint64_t>(offset));
}

void TraceClock::add(const ClockAnchor& anchor) {
  constexpr std::uint64_t kImpossible = std::uint64_t{1} << 61;  // ns, 73 years; sums of two cannot overflow
  if (anchor.counter == 0 || anchor.monotonic_ns >= kImpossible || anchor.wall_ns >= 2 * kImpossible) return;
  if (first_.counter == 0) first_ = anchor;
  if (anchor.monotonic_ns >= last_.monotonic_ns) last_ = anchor;
  if (last_.counter > first_.counter && last_.monotonic_ns > first_.monotonic_ns) {
    slope_ = static_cast<double>(last_.monotonic_ns - first_.monotonic_ns) /
             static_cast<double>(last_.counter - first_.counter);
  }
}

ChunkClock TraceClock::between(const ClockAnchor& begin, const ClockAnchor& end) const {
  // Within 1 ms the anchors' jitter would distort the slope: use that over all anchors.
  double slope = slope_;
  if (end.counter > begin.counter && end.monotonic_ns > begin.monotonic_ns + 1'000'000) {
    slope =
        static_cast<double>(end.monotonic_ns - begin.monotonic_ns) / static_cast<double>(end.counter - begin.counter);
  }
  return {begin.counter, wall_ns_of(begin), slope};
}

}  // namespace alloctrace
