#include "block_table.h"

#include <pthread.h>

#include <atomic>

namespace alloctrace::torch_side {
namespace {

// The allocators in front that keep a table: untracked CUDA blocks, pinned memory.
std::array<std::atomic<BlockTable*>, 2> tables{};

template <typename Do>
void for_each_table(Do act) {
  for (const std::atomic<BlockTable*>& table : tables) {
    if (BlockTable* const made = table.load(std::memory_order_acquire)) act(*made);
  }
}
void lock_all() {
  for_each_table([](BlockTable& table) { table.lock_for_fork(); });
}
void unlock_all() {
  for_each_table([](BlockTable& table) { table.unlock_after_fork(); });
}

}  // namespace

BlockTable& BlockTable::make() {
  [[maybe_unused]] static const int registered = pthread_atfork(lock_all, unlock_all, unlock_all);
  BlockTable* const made = std::make_unique<BlockTable>().release();
  for (std::atomic<BlockTable*>& table : tables) {
    BlockTable* none = nullptr;
    if (table.compare_exchange_strong(none, made, std::memory_order_release)) break;
  }
  return *made;
}

void BlockTable::lock_for_fork() {
  for (Shard& shard : shards_) shard.mutex.lock();
  is_locked_for_fork_ = true;
}

void BlockTable::unlock_after_fork() {
  if (!is_locked_for_fork_) return;  // made since the fork began
  is_locked_for_fork_ = false;
  for (Shard& shard : shards_) shard.mutex.unlock();
}

}  // namespace alloctrace::torch_side
