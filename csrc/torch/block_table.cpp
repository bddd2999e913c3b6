#include "block_table.h"

#include <pthread.h>

#include <atomic>

namespace alloctrace::torch_side {
namespace {

// The allocators in front that keep a table: untracked CUDA blocks, pinned memory.
std::array<std::atomic<BlockTable*>, 2> tables{};

// Those that the thread which forks has locked: others may be made meanwhile.
thread_local std::array<BlockTable*, 2> locked{};

void lock_all() {
  for (std::size_t index = 0; index < tables.size(); ++index) {
    locked[index] = tables[index].load(std::memory_order_acquire);
    if (locked[index] != nullptr) locked[index]->lock_for_fork();
  }
}
void unlock_all() {
  for (BlockTable* const table : locked) {
    if (table != nullptr) table->unlock_after_fork();
  }
}
// Before the handlers of a session, so that these run first: they may wait for the driver, and hold no lock of ours.
[[maybe_unused]] const int registered = pthread_atfork(lock_all, unlock_all, unlock_all);

}  // namespace

BlockTable& BlockTable::make() {
  BlockTable* const made = std::make_unique<BlockTable>().release();
  for (std::atomic<BlockTable*>& table : tables) {
    BlockTable* none = nullptr;
    if (table.compare_exchange_strong(none, made, std::memory_order_release)) break;
  }
  return *made;
}

void BlockTable::lock_for_fork() {
  for (Shard& shard : shards_) shard.mutex.lock();
}

void BlockTable::unlock_after_fork() {
  for (Shard& shard : shards_) shard.mutex.unlock();
}

}  // namespace alloctrace::torch_side
