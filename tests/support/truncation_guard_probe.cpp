// Raises SIGBUS beside a guarded mapping, under each way that a program may handle it, and prints the outcome.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "../../csrc/core/recording/truncation_guard.h"

namespace {

constexpr std::size_t kPage = 4096;
int calls = 0;

void count_call() {
  if (++calls > 3) _exit(9);
}
void raise_again(int signal) {
  count_call();
  raise(signal);
}
void just_return(int) { count_call(); }

// A mapping whose file is empty by now.
char* truncated_mapping(std::size_t bytes) {
  const int file = memfd_create("truncated", 0);
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) _exit(8);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED || ftruncate(file, 0) != 0) _exit(8);
  return static_cast<char*>(memory);
}

void show(const char* what, void (*handler)(int), int flags, bool is_sent) {
  std::printf("%s: ", what);
  std::fflush(stdout);
  if (fork() == 0) {
    struct sigaction action{};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(SIGBUS, &action, nullptr);
    char* const guarded = truncated_mapping(2 * kPage);
    const alloctrace::TruncationGuard guard(guarded, 2 * kPage);
    guarded[kPage] = 5;
    guarded[0] = 3;
    if (guarded[kPage] != 5 || guarded[0] != 3) _exit(7);
    if (is_sent) {
      kill(getpid(), SIGBUS);
    } else {
      truncated_mapping(kPage)[0] = 1;
    }
    _exit(10 + calls);
  }
  int status = 0;
  wait(&status);
  if (WIFSIGNALED(status)) {
    std::printf("dies\n");
  } else {
    std::printf("%d\n", WEXITSTATUS(status));
  }
}

}  // namespace

int main() {
  show("default, fault", SIG_DFL, 0, false);
  show("default, sent", SIG_DFL, 0, true);
  show("ignored, fault", SIG_IGN, 0, false);
  show("ignored, sent", SIG_IGN, 0, true);
  show("handled once and raised, fault", raise_again, SA_RESETHAND | SA_NODEFER, false);
  show("handled once, fault", just_return, SA_RESETHAND, false);
  show("handled, sent", just_return, 0, true);
}
