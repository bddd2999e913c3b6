// Signals are for the program's threads, not for ours.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace alloctrace {

// Blocks all signals on this thread as long as it exists. A thread that is started meanwhile keeps them blocked, from
// its first instruction on.
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

}  // namespace alloctrace
