// How every thread of ours in an observed program is started.
#pragma once

#include <pthread.h>

#include <thread>
#include <utility>

#include "blocked_signals.h"

namespace alloctrace {

// Runs `body` on a new thread, named "alloctrace" in debuggers, with all signals blocked: the program's handlers must
// not run on a thread that it does not know, and a signal that it blocks must not kill it through our thread. Throws
// std::system_error when the system cannot start a thread.
template <typename Body>
std::thread start_thread(Body body) {
  const BlockedSignals inherited;
  return std::thread([body = std::move(body)] {
    pthread_setname_np(pthread_self(), "alloctrace");
    body();
  });
}

}  // namespace alloctrace
