#include "termination_signal.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace alloctrace {
namespace {

// Maximum time from the signal to the end of the process: schedulers send SIGKILL after 5 to 30 s.
constexpr timespec kMaxShutdownTime{2, 0};
// Time that the handler holds its thread, so that an interrupted call (pause, select) does not return to the program.
// Limited, because that thread may hold a lock that the writer needs: malloc's, or one of the recorder's.
constexpr std::uint64_t kHoldNs = 500'000'000;

// State of the handler. Static, because the handler may run on any thread while the TerminationSignal is destroyed.
std::atomic<WakeSignal*> writer_wake{nullptr};
std::atomic<pid_t> owner_process{0};
std::atomic<bool> was_received{false};
std::atomic<int> posting_handlers{0};
timer_t kill_timer{};  // sends SIGTERM again, by then with its default action, if the writer hangs on a disk

void set_default_action() {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(SIGTERM, &action, nullptr);
}

void hold_thread() {
  const std::uint64_t until = clock_nanoseconds(CLOCK_MONOTONIC) + kHoldNs;
  while (clock_nanoseconds(CLOCK_MONOTONIC) < until) {
    const timespec nap{0, 10'000'000};
    // Not nanosleep(), a cancellation point: a cancelled thread would unwind through the handler.
    syscall(SYS_nanosleep, &nap, nullptr);
  }
}

// Start kill_timer and wake the writer. Installed with SA_RESETHAND and SA_NODEFER: a second signal ends the program.
void handle_termination(int) {
  const int error = errno;
  // The caller is a child of vfork or clone that shares this handler and memory, or a handler of the program's that
  // calls the handler it replaced.
  if (getpid() != owner_process.load() || was_received.exchange(true)) {
    set_default_action();
    kill(getpid(), SIGTERM);
    return;
  }
  const itimerspec delay{{}, kMaxShutdownTime};
  timer_settime(kill_timer, 0, &delay, nullptr);
  posting_handlers.fetch_add(1);
  if (WakeSignal* const wake = writer_wake.load()) wake->post();
  posting_handlers.fetch_sub(1);
  hold_thread();
  errno = error;
}

bool is_installed() {
  struct sigaction current{};
  return sigaction(SIGTERM, nullptr, &current) == 0 && !(current.sa_flags & SA_SIGINFO) &&
         current.sa_handler == handle_termination;
}

}  // namespace

TerminationSignal::TerminationSignal(WakeSignal& wake) {
  struct sigaction before{};
  // The kernel does not apply the default action to process 1 of a container: it would go on without being recorded.
  if (getpid() == 1 || sigaction(SIGTERM, nullptr, &before) != 0 || (before.sa_flags & SA_SIGINFO) ||
      before.sa_handler != SIG_DFL) {
    return;
  }
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGTERM;
  if (timer_create(CLOCK_MONOTONIC, &event, &kill_timer) != 0) return;
  was_received = false;
  owner_process = getpid();
  writer_wake = &wake;
  struct sigaction action{};
  action.sa_handler = handle_termination;
  action.sa_flags = SA_RESTART | SA_RESETHAND | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
}

TerminationSignal::~TerminationSignal() {
  if (writer_wake.load() == nullptr) return;
  if (is_installed()) set_default_action();
  writer_wake = nullptr;
  while (posting_handlers.load() != 0) {
    const timespec nap{0, 20'000};
    nanosleep(&nap, nullptr);
  }
  if (was_received) resend();
  timer_delete(kill_timer);
}

bool TerminationSignal::received() noexcept { return was_received; }

void TerminationSignal::resend() noexcept {
  const itimerspec never{};
  timer_settime(kill_timer, 0, &never, nullptr);
  was_received = false;
  kill(getpid(), SIGTERM);
}

void TerminationSignal::forget_in_child() noexcept {
  if (writer_wake.exchange(nullptr) != nullptr && is_installed()) set_default_action();
  was_received = false;
  posting_handlers = 0;  // kill_timer itself is not inherited
}

}  // namespace alloctrace
