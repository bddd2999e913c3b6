#include "truncation_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace alloctrace {
namespace {

// The handler's state. Static, because the handler may run on any thread at any time. The lock is held for one system
// call at most, and never by a thread that touches guarded memory meanwhile.
std::atomic_flag guard_lock = ATOMIC_FLAG_INIT;
std::atomic<std::uintptr_t> guarded_begin{0}, guarded_end{0};
// From here to the end, pages of this process have taken the place of the file's.
std::atomic<std::uintptr_t> missing_from{0};
std::uintptr_t page_bytes = 4096;
struct sigaction action_before{};
bool is_in_use = false;  // ours is installed, or a handler that was installed over it may call it

class GuardLock {
 public:
  GuardLock() {
    while (guard_lock.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~GuardLock() { guard_lock.clear(std::memory_order_release); }
  GuardLock(const GuardLock&) = delete;
  GuardLock& operator=(const GuardLock&) = delete;
};

// False: the address is none of the guarded ones, or there is no memory.
bool replace_missing(std::uintptr_t address) noexcept {
  if (address < guarded_begin || address >= guarded_end) return false;
  const GuardLock held;
  const std::uintptr_t page = address & ~(page_bytes - 1), bytes = missing_from - page;
  // Another thread may have met a missing page first.
  if (page >= missing_from) return true;
  // A truncated file has no page behind this one either. A second truncation may take pages before it.
  void* const pages = reinterpret_cast<void*>(page);
  if (mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return false;
  }
  madvise(pages, bytes, MADV_DONTFORK);
  missing_from = page;
  return true;
}

bool blocks_all_others(const sigset_t& blocked) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM, SIGSEGV, SIGUSR1, SIGUSR2}) {
    if (sigismember(&blocked, number) != 1) return false;
  }
  return true;
}

// Does what the system would have done without our handler.
void act_as_before(int signal, siginfo_t* info, void* context, bool is_fault) {
  const struct sigaction action = action_before;
  const bool is_default = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
  const bool is_ignored = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
  if (is_default || (is_ignored && is_fault)) {
    // The fault comes again when the handler returns; a signal that was sent is sent again.
    sigaction(SIGBUS, &action, nullptr);
    if (!is_fault) raise(signal);
  } else if (!is_ignored) {
    sigset_t blocked;
    sigorset(&blocked, &static_cast<ucontext_t*>(context)->uc_sigmask, &action.sa_mask);
    if ((action.sa_flags & SA_NODEFER) == 0) sigaddset(&blocked, SIGBUS);
    if ((action.sa_flags & SA_RESETHAND) != 0) {
      struct sigaction once{};
      once.sa_handler = SIG_DFL;
      sigaction(SIGBUS, &once, nullptr);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
    if ((action.sa_flags & SA_SIGINFO) != 0) {
      action.sa_sigaction(signal, info, context);
    } else {
      action.sa_handler(signal);
    }
  }
}

void handle_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool is_fault = info->si_code > 0;  // else it was sent, by kill() or the like
  if (is_fault && replace_missing(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    errno = error;
    return;
  }
  sigset_t& interrupted = static_cast<ucontext_t*>(context)->uc_sigmask;  // holds again when this returns
  if (!is_fault && blocks_all_others(interrupted)) {
    // A thread of ours, to which the system gave what the program's threads may all block: from now on it does, too.
    sigaddset(&interrupted, SIGBUS);
    kill(getpid(), SIGBUS);
  } else {
    act_as_before(signal, info, context, is_fault);
  }
  errno = error;
}

bool handles_bus_error() {
  struct sigaction current{};
  return sigaction(SIGBUS, nullptr, &current) == 0 && (current.sa_flags & SA_SIGINFO) != 0 &&
         current.sa_sigaction == handle_bus_error;
}

void install_bus_handler() {
  struct sigaction current{};
  sigaction(SIGBUS, nullptr, &current);
  const bool is_handled =
      (current.sa_flags & SA_SIGINFO) != 0 || (current.sa_handler != SIG_DFL && current.sa_handler != SIG_IGN);
  // Never over a handler that was installed over ours: that may call ours, and ours would call it.
  if (is_in_use && is_handled) return;
  action_before = current;
  struct sigaction action{};
  action.sa_sigaction = handle_bus_error;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);  // a handler of the program's could meet a missing page while ours holds the lock
  sigaction(SIGBUS, &action, nullptr);
  is_in_use = true;
}

void uninstall_bus_handler() {
  if (!handles_bus_error()) return;
  sigaction(SIGBUS, &action_before, nullptr);
  is_in_use = false;
}

}  // namespace

TruncationGuard::TruncationGuard(void* memory, std::size_t bytes) : begin_(reinterpret_cast<std::uintptr_t>(memory)) {
  {
    const GuardLock held;
    page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    guarded_begin = begin_;
    guarded_end = begin_ + bytes;
    missing_from = begin_ + bytes;
  }
  install_bus_handler();
}

TruncationGuard::~TruncationGuard() {
  {
    const GuardLock held;
    if (guarded_begin != begin_) return;
    guarded_begin = 0;
    guarded_end = 0;
  }
  uninstall_bus_handler();
}

void TruncationGuard::forget_in_child() noexcept {
  guard_lock.clear();  // of a thread that the child does not have
  guarded_begin = 0;
  guarded_end = 0;
  uninstall_bus_handler();
}

}  // namespace alloctrace
