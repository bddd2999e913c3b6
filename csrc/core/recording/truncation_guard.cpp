#include "truncation_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace alloctrace {
namespace {

// State of the handler. Static, because the handler may run on any thread at any time. The lock is held for two system
// calls at most, and never by a thread that accesses guarded memory: its fault would deadlock in the handler.
std::atomic_flag guard_lock = ATOMIC_FLAG_INIT;
std::atomic<std::uintptr_t> guarded_begin{0}, guarded_end{0};
// From this address to the end, anonymous pages have replaced the file's.
std::atomic<std::uintptr_t> replaced_from{0};
std::uintptr_t page_bytes = 4096;
struct sigaction previous_action{};
bool is_handler_reachable = false;  // the handler is installed, or a later one may call it

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

// Replace the pages from a missing one on by anonymous pages. Returns false if the address is unguarded or mmap fails.
bool replace_missing_pages(std::uintptr_t address) noexcept {
  if (address < guarded_begin || address >= guarded_end) return false;
  const GuardLock lock;
  const std::uintptr_t page = address & ~(page_bytes - 1), bytes = replaced_from - page;
  // Another thread may have replaced the page while this one waited for the lock.
  if (page >= replaced_from) return true;
  // A truncated file has no later page either. A second truncation may remove earlier ones.
  void* const pages = reinterpret_cast<void*>(page);
  if (mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return false;
  }
  madvise(pages, bytes, MADV_DONTFORK);
  replaced_from = page;
  return true;
}

bool blocks_all_others(const sigset_t& blocked) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM, SIGSEGV, SIGUSR1, SIGUSR2}) {
    if (sigismember(&blocked, number) != 1) return false;
  }
  return true;
}

// Apply the action that SIGBUS had before this handler was installed.
void run_previous_action(int signal, siginfo_t* info, void* context, bool is_fault) {
  const struct sigaction action = previous_action;
  const bool is_default = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
  const bool is_ignored = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
  if (is_default || (is_ignored && is_fault)) {
    // A fault is raised again when the handler returns; a signal that was sent must be sent again.
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
  const bool is_fault = info->si_code > 0;  // else sent, for example by kill()
  if (is_fault && replace_missing_pages(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    errno = error;
    return;
  }
  sigset_t& interrupted = static_cast<ucontext_t*>(context)->uc_sigmask;  // restored when this handler returns
  if (!is_fault && blocks_all_others(interrupted)) {
    // One of the recorder's threads got a signal that all of the program's threads may block: block it here as well,
    // and send it again.
    sigaddset(&interrupted, SIGBUS);
    kill(getpid(), SIGBUS);
  } else {
    run_previous_action(signal, info, context, is_fault);
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
  // Not over a handler that replaced this one: it may call this one, which would call it again, endlessly.
  if (is_handler_reachable && is_handled) return;
  previous_action = current;
  struct sigaction action{};
  action.sa_sigaction = handle_bus_error;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);  // a nested handler could fault while this one holds the lock
  sigaction(SIGBUS, &action, nullptr);
  is_handler_reachable = true;
}

void uninstall_bus_handler() {
  if (!handles_bus_error()) return;
  sigaction(SIGBUS, &previous_action, nullptr);
  is_handler_reachable = false;
}

}  // namespace

TruncationGuard::TruncationGuard(void* memory, std::size_t bytes) : begin_(reinterpret_cast<std::uintptr_t>(memory)) {
  {
    const GuardLock lock;
    page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    guarded_begin = begin_;
    guarded_end = begin_ + bytes;
    replaced_from = begin_ + bytes;
  }
  install_bus_handler();
}

TruncationGuard::~TruncationGuard() {
  {
    const GuardLock lock;
    if (guarded_begin != begin_) return;
    guarded_begin = 0;
    guarded_end = 0;
  }
  uninstall_bus_handler();
}

void TruncationGuard::forget_in_child() noexcept {
  guard_lock.clear();  // the thread that held it does not exist in the child
  guarded_begin = 0;
  guarded_end = 0;
  uninstall_bus_handler();
}

}  // namespace alloctrace
