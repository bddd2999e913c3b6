// How every thread of ours is started.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace alloctrace {

// Blocks all signals on this thread as long as it exists.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// Runs `body` on a new thread, named "alloctrace" in debuggers, with all signals blocked: the program's handlers must
// not run on a thread that it does not know, and a signal that it blocks must not kill it through our thread. Throws
// std::system_error when the system cannot start a thread.
template <typename Body>
std::thread start_thread(Body body) {
  const BlockedSignals inherited;  // from its first instruction on
  return std::thread([body = std::move(body)] {
    pthread_setname_np(pthread_self(), "alloctrace");
    body();
  });
}

}  // namespace alloctrace
