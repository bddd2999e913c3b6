#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

// Scope that blocks all signals on this thread and, from their first instruction, on threads started in the scope.

namespace alloctrace {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t previous_;
};

// Run `body` on a new thread named "alloctrace", with all signals but SIGBUS blocked: the program's handlers must not
// run on this thread, and a signal that the program blocks must not kill it from here. SIGBUS stays unblocked: the
// thread may touch missing spool pages, and the kernel kills a process whose own fault raises a blocked signal (the
// handler in recording/truncation_guard.h forwards a SIGBUS that was sent). Throws std::system_error.
template <typename Body>
std::thread start_thread(Body body) {
  const BlockedSignals inherited;
  return std::thread([body = std::move(body)] {
    pthread_setname_np(pthread_self(), "alloctrace");
    sigset_t faults;
    sigemptyset(&faults);
    sigaddset(&faults, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
    body();
  });
}

}  // namespace alloctrace
