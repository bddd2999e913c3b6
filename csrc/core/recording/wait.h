// Bounded waiting in the hook.
#pragma once

#include <time.h>

#include <cstdint>

#include "../base/clock.h"

namespace alloctrace {

// True as soon as `condition()` holds, false when it did not until deadline_ns of the monotonic clock. Sleeps in short
// naps: the thread that is waited for may need this core (the hook must never spin against the writer on a machine with
// one).
template <typename Condition>
bool wait_until(Condition condition, std::uint64_t deadline_ns) noexcept {
  if (condition()) return true;
  do {
    const timespec nap{0, 50'000};
    nanosleep(&nap, nullptr);
    if (condition()) return true;
  } while (clock_nanoseconds(CLOCK_MONOTONIC) < deadline_ns);
  return false;
}

}  // namespace alloctrace
