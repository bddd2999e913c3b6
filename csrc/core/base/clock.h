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

// The processor's counter: a few nanoseconds to read, where clock_gettime costs five times as much in the hook.
// Counts of different cores agree on every machine that PyTorch runs on (constant, synchronised counters).
inline std::uint64_t read_counter() {
#if defined(__x86_64__)
  return __rdtsc();
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
