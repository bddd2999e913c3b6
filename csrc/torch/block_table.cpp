#include "block_table.h"

#include <pthread.h>

#include <atomic>

namespace alloctrace::torch_side {
namespace {

// Tables of the process: untracked CUDA blocks, pinned memory.
std::array<std::atomic<BlockTable*>, 2> tables{};

// Tables that the forking thread has locked. A table that another thread creates meanwhile must not be unlocked.
thread_local std::array<BlockTable*, 2> locked_tables{};

void lock_all() {
  for (std::size_t index = 0; index < tables.size(); ++index) {
    locked_tables[index] = tables[index].load(std::memory_order_acquire);
    if (locked_tables[index] != nullptr) locked_tables[index]->lock_for_fork();
  }
}
void unlock_all() {
  for (BlockTable* const table : locked_tables) {
    if (table != nullptr) table->unlock_after_fork();
  }
}
// Registered before a session's handlers, which therefore run first: they may wait for the driver, without these locks.
[[maybe_unused]] const int registered = pthread_atfork(lock_all, unlock_all, unlock_all);

}  // namespace

BlockTable& BlockTable::create() {
  BlockTable* const new_table = std::make_unique<BlockTable>().release();
  for (std::atomic<BlockTable*>& table : tables) {
    BlockTable* expected = nullptr;
    if (table.compare_exchange_strong(expected, new_table, std::memory_order_release)) break;
  }
  return *new_table;
}

void BlockTable::lock_for_fork() {
  for (Shard& shard : shards_) shard.mutex.lock();
}
void BlockTable::unlock_after_fork() {
  for (Shard& shard : shards_) shard.mutex.unlock();
}

}  // namespace alloctrace::torch_side
