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

// Thread-safe table. Its mutexes are leaf locks, held over fork(): the table has the only copy of each deleter, so a
// child must find it complete to free the blocks that it inherits.
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
