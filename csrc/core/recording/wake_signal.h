// The writer's alarm.
#pragma once

#include <semaphore.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "../base/clock.h"

namespace alloctrace {

// Posting is async-signal-safe and never blocks: hooks and the handler of SIGTERM do it.
class WakeSignal {
 public:
  WakeSignal() { sem_init(&semaphore_, 0, 0); }
  ~WakeSignal() { sem_destroy(&semaphore_); }
  WakeSignal(const WakeSignal&) = delete;
  WakeSignal& operator=(const WakeSignal&) = delete;
  void post() {
    // One pending alarm is enough; more would make the writer spin through stale ones.
    if (!pending_.exchange(true, std::memory_order_acq_rel)) sem_post(&semaphore_);
  }
  void wait_ms(std::uint64_t milliseconds) {
    // On the monotonic clock: on the wall clock, setting it back by an hour would mean an hour of sleep.
    const std::uint64_t until_ns = clock_nanoseconds(CLOCK_MONOTONIC) + milliseconds * 1'000'000;
    timespec until{};
    until.tv_sec = static_cast<time_t>(until_ns / 1'000'000'000);
    until.tv_nsec = static_cast<long>(until_ns % 1'000'000'000);
    sem_clockwait(&semaphore_, CLOCK_MONOTONIC, &until);
    pending_.store(false, std::memory_order_release);
  }

 private:
  sem_t semaphore_;
  std::atomic<bool> pending_{false};
};

}  // namespace alloctrace
