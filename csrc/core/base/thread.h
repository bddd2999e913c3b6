// How every thread of ours in an observed program is started.
#pragma once

#include <pthread.h>

#include <thread>
#include <utility>

#include "blocked_signals.h"

namespace alloctrace {

// Runs `body` on a new thread, named "alloctrace" in debuggers, with all signals but SIGBUS blocked: the program's
// handlers must not run on a thread that it does not know, and a signal that it blocks must not kill it through our
// thread. The system ends a process whose own fault raises a blocked signal, and the thread may meet missing pages of
// the spool: recording/truncation_guard.h, whose handler passes on a SIGBUS that was sent. Throws std::system_error
// when the system cannot start a thread.
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
