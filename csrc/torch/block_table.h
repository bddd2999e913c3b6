// The live blocks of an allocator in front, by the word that their deleter is called with: it gets nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "../core/format/definitions.h"

namespace alloctrace::torch_side {

struct LiveBlock {
  void* address;
  std::size_t size;
  Location location;
  void (*deleter)(void*);  // c10::DeleterFnPtr, of the allocator that made it
};

// Safe to use from any thread; its mutexes are leaves. They are held over fork(): the table has the only copy of each
// deleter, so a child must find it whole, and free the blocks that it inherits.
class BlockTable {
 public:
  // Never destroyed: tensors are freed until the process is gone.
  static BlockTable& make();

  // False when there is no memory to remember it: the block must then keep its own deleter, and its free is not seen.
  bool put(void* key, const LiveBlock& block) noexcept {
    Shard& shard = shard_of(key);
    const std::lock_guard<std::mutex> guard(shard.mutex);
    try {
      shard.blocks[key] = block;
      return true;
    } catch (...) {
      return false;
    }
  }
  std::optional<LiveBlock> take(void* key) noexcept {
    Shard& shard = shard_of(key);
    const std::lock_guard<std::mutex> guard(shard.mutex);
    const auto found = shard.blocks.find(key);
    if (found == shard.blocks.end()) return std::nullopt;
    const LiveBlock block = found->second;
    shard.blocks.erase(found);
    return block;
  }

  void lock_for_fork();
  void unlock_after_fork();

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, LiveBlock> blocks;
  };
  // Addresses of blocks share their low bits.
  Shard& shard_of(void* key) { return shards_[reinterpret_cast<std::uintptr_t>(key) * 0x9E3779B97F4A7C15u >> 60]; }
  std::array<Shard, 16> shards_;
};

}  // namespace alloctrace::torch_side
