// Bounded waiting in the hook.
#pragma once

#include <pthread.h>
#include <time.h>

#include <cstdint>

#include "../base/clock.h"

namespace alloctrace {

// True as soon as `condition()` holds, false if it does not by deadline_ns of the monotonic clock. Sleeps in short
// naps: the thread that is waited for may need this core (the hook must never spin against the writer on a machine with
// a single core).
template <typename Condition>
bool wait_until(Condition condition, std::uint64_t deadline_ns) noexcept {
  if (condition()) return true;
  // A thread that pthread_cancel() ends in our nap would unwind through noexcept hooks, which ends the program.
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
