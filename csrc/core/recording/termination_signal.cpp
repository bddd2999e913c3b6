#include "termination_signal.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace alloctrace {
namespace {

// Schedulers kill a program that does not end within 5 to 30 s.
constexpr timespec kBound{2, 0};
// How long the thread that got the signal is held, so that a call which the signal interrupts (pause, select) does not
// return to the program. Not until the end: it may hold a lock that the writer needs, of malloc or of ours.
constexpr std::uint64_t kHoldNs = 500'000'000;

// The handler's state. Static, because the handler may run, on any thread, while the recording ends.
std::atomic<WakeSignal*> waker{nullptr};
std::atomic<pid_t> owner{0};
std::atomic<bool> was_received{false};
std::atomic<int> handlers_posting{0};
timer_t death{};  // sends the signal once more, with its default action by then: the writer may hang on a dead disk

void set_default_action() {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(SIGTERM, &action, nullptr);
}

void hold_this_thread() {
  const std::uint64_t until = clock_nanoseconds(CLOCK_MONOTONIC) + kHoldNs;
  while (clock_nanoseconds(CLOCK_MONOTONIC) < until) {
    const timespec nap{0, 10'000'000};
    // The call itself: the library's is a cancellation point, which must not unwind through a handler.
    syscall(SYS_nanosleep, &nap, nullptr);
  }
}

// Installed so that the first signal restores the default action (SA_RESETHAND) and is not blocked meanwhile
// (SA_NODEFER): a second one ends the program at once.
void handle(int) {
  const int error = errno;
  // A child of vfork or clone that has our handler and memory still, but not our process; or a handler of the program's
  // that calls the one it replaced.
  if (getpid() != owner.load() || was_received.exchange(true)) {
    set_default_action();
    kill(getpid(), SIGTERM);
    return;
  }
  const itimerspec bound{{}, kBound};
  timer_settime(death, 0, &bound, nullptr);
  handlers_posting.fetch_add(1);
  if (WakeSignal* const wake = waker.load()) wake->post();
  handlers_posting.fetch_sub(1);
  hold_this_thread();
  errno = error;
}

bool is_installed() {
  struct sigaction current{};
  return sigaction(SIGTERM, nullptr, &current) == 0 && !(current.sa_flags & SA_SIGINFO) && current.sa_handler == handle;
}

}  // namespace

TerminationSignal::TerminationSignal(WakeSignal& wake) {
  struct sigaction before{};
  // The first process of a container dies of no signal that it does not handle: for us to end its trace and nothing
  // else would leave it running unrecorded.
  if (getpid() == 1 || sigaction(SIGTERM, nullptr, &before) != 0 || (before.sa_flags & SA_SIGINFO) ||
      before.sa_handler != SIG_DFL) {
    return;
  }
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGTERM;
  if (timer_create(CLOCK_MONOTONIC, &event, &death) != 0) return;
  was_received = false;
  owner = getpid();
  waker = &wake;
  struct sigaction action{};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART | SA_RESETHAND | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
}

TerminationSignal::~TerminationSignal() {
  if (waker.load() == nullptr) return;
  if (is_installed()) set_default_action();
  waker = nullptr;
  while (handlers_posting.load() != 0) {
    const timespec nap{0, 20'000};
    nanosleep(&nap, nullptr);
  }
  if (was_received) pass_on();
  timer_delete(death);
}

bool TerminationSignal::received() noexcept { return was_received; }

void TerminationSignal::pass_on() noexcept {
  const itimerspec never{};
  timer_settime(death, 0, &never, nullptr);
  was_received = false;
  kill(getpid(), SIGTERM);
}

void TerminationSignal::forget_in_child() noexcept {
  if (waker.exchange(nullptr) != nullptr && is_installed()) set_default_action();
  was_received = false;
  handlers_posting = 0;  // timers are not inherited
}

}  // namespace alloctrace
