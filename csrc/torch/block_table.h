// Live blocks of an allocator in front, by the only argument of their deleter.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "../core/base/hash.h"
#include "../core/format/definitions.h"

namespace alloctrace::torch_side {

struct LiveBlock {
  void* address;
  std::size_t size;
  Location location;
  void (*deleter)(void*);  // c10::DeleterFnPtr of the block's allocator
};

// Contract:
// - Any thread may call insert() and extract(). Each holds the mutex of its key's shard, a leaf lock.
// - Of several threads that extract a key, one gets the block. insert() replaces an older entry of the key.
// - Insert a block before the program gets it, and extract it before its deleter is called: the upstream may give its
//   address to another thread at once.
// - The table is never full and removes no block by itself. insert() stores a block completely or, without memory, not
//   at all.
// - All mutexes are held over fork(), by the forking thread: the table has the only copy of each deleter, so a child
//   must find it complete to free the blocks that it inherits.
class BlockTable {
 public:
  // Create a table that is never destroyed: tensors are freed until the process ends.
  static BlockTable& create();

  // Return false when out of memory: the block must then keep its deleter, and its free is not recorded.
  bool insert(void* key, const LiveBlock& block) noexcept {
    Shard& shard = shard_of(key);
    const std::lock_guard<std::mutex> guard(shard.mutex);
    try {
      shard.blocks[key] = block;
      return true;
    } catch (...) {
      return false;
    }
  }
  std::optional<LiveBlock> extract(void* key) noexcept {
    Shard& shard = shard_of(key);
    const std::lock_guard<std::mutex> guard(shard.mutex);
    const auto entry = shard.blocks.find(key);
    if (entry == shard.blocks.end()) return std::nullopt;
    const LiveBlock block = entry->second;
    shard.blocks.erase(entry);
    return block;
  }

  void lock_for_fork();
  void unlock_after_fork();

 private:
  static constexpr unsigned kShardBits = 4;
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, LiveBlock> blocks;
  };
  // Hash the address: the low bits of block addresses are equal.
  Shard& shard_of(void* key) { return shards_[hash_to_slot(reinterpret_cast<std::uintptr_t>(key), kShardBits)]; }
  std::array<Shard, std::size_t{1} << kShardBits> shards_;
};

}  // namespace alloctrace::torch_side
