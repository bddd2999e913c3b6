// Forks while other threads put blocks into a table and take them out: each child must find the blocks of the forking
// thread, each once.
//
//   block_table_probe FORKS
//
// Prints how many children waited for a lock for more than two seconds, and how many missed a block.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#include "../../csrc/torch/block_table.cpp"

namespace {

using alloctrace::torch_side::BlockTable;
using alloctrace::torch_side::LiveBlock;

constexpr std::uintptr_t kHeld = 1000, kSpread = 0x10000;
std::atomic<bool> stopping{false};

void* key(std::uintptr_t number) { return reinterpret_cast<void*>(number * kSpread); }

void churn(BlockTable& table, std::uintptr_t first) {
  while (!stopping) {
    for (std::uintptr_t number = first; number < first + kHeld; ++number) table.insert(key(number), {});
    for (std::uintptr_t number = first; number < first + kHeld; ++number) table.extract(key(number));
  }
}

int extract_all(BlockTable& table) {
  for (std::uintptr_t number = 1; number <= kHeld; ++number) {
    const auto block = table.extract(key(number));
    if (!block || block->size != number || table.extract(key(number))) return 1;
  }
  return 0;
}

}  // namespace

int main(int, char** arguments) {
  BlockTable& table = BlockTable::create();
  for (std::uintptr_t number = 1; number <= kHeld; ++number) table.insert(key(number), {nullptr, number, {}, nullptr});
  std::vector<std::thread> threads;
  for (std::uintptr_t thread = 1; thread <= 3; ++thread) {
    threads.emplace_back([&table, thread] { churn(table, thread * 10 * kHeld); });
  }
  int waited = 0, missed = 0;
  for (int fork_number = 0; fork_number < std::atoi(arguments[1]); ++fork_number) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(2);
      _exit(extract_all(table));
    }
    int status = 0;
    waitpid(child, &status, 0);
    waited += WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    missed += !WIFSIGNALED(status) && WEXITSTATUS(status) != 0;
  }
  stopping = true;
  for (std::thread& thread : threads) thread.join();
  std::printf("%d waited, %d missed\n", waited, missed);
}
