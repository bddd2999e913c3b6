#pragma once

#include <pthread.h>

#include <thread>
#include <utility>

#include "blocked_signals.h"

// Storage class of thread-local variables that hooks read at every event. Each access is one instruction instead of a
// function call. The loader reserves only 1 to 2 kB for such variables of all libraries: for pointers and numbers only.
#define ALLOCTRACE_FAST_THREAD_LOCAL __attribute__((tls_model("initial-exec"))) thread_local

namespace alloctrace {

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
