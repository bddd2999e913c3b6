// Time stamps of events, and the anchors that convert them to monotonic and wall time.
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
// True if the processor's counter has a constant rate and is equal on all cores. Determined when the library is loaded.
extern const bool counter_is_steady;
#else
constexpr bool counter_is_steady = true;
#endif

// Read the counter, or the monotonic clock if not steady. In the hook clock_gettime takes five times as long.
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

// Return the nanoseconds per count, measured since the library was loaded.
double counter_nanoseconds();

// One instant on three clocks. Counter values between two anchors are converted by linear interpolation.
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
