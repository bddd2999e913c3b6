// Bounded waiting in the hook.
#pragma once

#include <pthread.h>
#include <time.h>

#include <cstdint>

#include "../base/clock.h"

namespace alloctrace {

// Wait until `condition()` is true, and return true; return false if it is not by deadline_ns of the monotonic clock.
// Sleeps between checks: on a machine with one core, spinning would keep the writer from running.
template <typename Condition>
bool wait_until(Condition condition, std::uint64_t deadline_ns) noexcept {
  if (condition()) return true;
  // nanosleep() is a cancellation point: a cancelled thread would unwind through noexcept hooks and end the program.
  int cancellable = PTHREAD_CANCEL_DISABLE;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellable);
  bool holds;
  do {
    const timespec nap{0, 50'000};
    nanosleep(&nap, nullptr);
    holds = condition();
  } while (!holds && clock_nanoseconds(CLOCK_MONOTONIC) < deadline_ns);
  pthread_setcancelstate(cancellable, nullptr);
  return holds;
}

}  // namespace alloctrace
