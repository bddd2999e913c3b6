// Bounded waiting in the hook, and the wake-up of another thread.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
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

// Wake-up of one thread (the writer, or that of thread_names.h): a futex, since sem_clockwait() needs glibc 2.30.
//
// Contract:
// - post() may be called on any thread, in hooks and in the SIGTERM handler: it is async-signal-safe and never blocks.
//   Only one thread calls wait_ms().
// - No post() is discarded: one that comes before wait_ms() ends the next wait at once. Several between two waits end
//   one wait.
// - After a wait that a post() ended, the waiting thread sees all stores before that post(). Both sides use exchange():
//   with a plain store, the writer could load the events before it clears the word, and an event would wait until the
//   next wake-up.
class WakeSignal {
 public:
  WakeSignal() = default;
  WakeSignal(const WakeSignal&) = delete;
  WakeSignal& operator=(const WakeSignal&) = delete;

  // Wake the waiting thread.
  void post() noexcept {
    if (word_.exchange(kPosted) == kNone) futex(FUTEX_WAKE_PRIVATE, 1, nullptr);
  }
  // Wait for a post(), at most `milliseconds`.
  void wait_ms(std::uint64_t milliseconds) noexcept {
    const std::uint64_t until_ns = clock_nanoseconds(CLOCK_MONOTONIC) + milliseconds * 1'000'000;
    while (word_.exchange(kNone) == kNone) {
      const std::uint64_t now_ns = clock_nanoseconds(CLOCK_MONOTONIC);
      if (now_ns >= until_ns) return;
      timespec left{};
      left.tv_sec = static_cast<time_t>((until_ns - now_ns) / 1'000'000'000);
      left.tv_nsec = static_cast<long>((until_ns - now_ns) % 1'000'000'000);
      futex(FUTEX_WAIT_PRIVATE, kNone, &left);
    }
  }

 private:
  static constexpr std::uint32_t kNone = 0, kPosted = 1;

  void futex(int operation, std::uint32_t value, const timespec* left) noexcept {
    syscall(SYS_futex, &word_, operation, value, left, nullptr, 0);
  }

  std::atomic<std::uint32_t> word_{kNone};
  static_assert(sizeof word_ == sizeof(std::uint32_t));
};

}  // namespace alloctrace
