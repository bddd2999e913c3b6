// The time stamp of an event, and what ties it to the clocks that people know.
#pragma once

#include <cstdint>
#include <ctime>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace alloctrace {

inline std::uint64_t clock_nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

#if defined(__x86_64__)
// Whether the processor's counter measures time: at one rate whatever the processor does, and the same on all cores.
// Found out when this is loaded. On other processors it always does.
extern const bool counter_is_steady;
#else
constexpr bool counter_is_steady = true;
#endif

// The processor's counter: a few nanoseconds to read, where clock_gettime costs five times as much in the hook. Where
// it is not steady, the monotonic clock.
inline std::uint64_t read_counter() {
#if defined(__x86_64__)
  if (counter_is_steady) [[likely]]
    return __rdtsc();
  return clock_nanoseconds(CLOCK_MONOTONIC);
#elif defined(__aarch64__)
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return clock_nanoseconds(CLOCK_MONOTONIC);
#endif
}

// Nanoseconds per count, measured over the time since the process loaded this.
double counter_nanoseconds();

// The same moment on three clocks. Between two anchors the counter is converted by linear interpolation.
struct ClockAnchor {
  std::uint64_t counter;
  std::uint64_t monotonic_ns;
  std::uint64_t wall_ns;  // since 1970-01-01 UTC

  static ClockAnchor now() {
    const std::uint64_t before = clock_nanoseconds(CLOCK_MONOTONIC);
    const std::uint64_t counter = read_counter();
    const std::uint64_t after = clock_nanoseconds(CLOCK_MONOTONIC);
    return {counter, before + (after - before) / 2, clock_nanoseconds(CLOCK_REALTIME)};
  }
};

}  // namespace alloctrace
