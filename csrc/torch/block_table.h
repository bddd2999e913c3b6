// Blocks that are live, by the word that their deleter is called with: a deleter is told nothing else.
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "../core/format/definitions.h"

namespace alloctrace::torch_side {

struct LiveAllocation {
  void* address;
  std::size_t size;
  Location location;
  c10::DeleterFnPtr deleter;  // of the allocator that made it
};

// Safe to use from any thread; its mutexes are leaves.
class BlockTable {
 public:
  // Throws std::bad_alloc.
  void put(void* key, const LiveAllocation& allocation) {
    Shard& shard = shard_of(key);
    const std::lock_guard<std::mutex> guard(shard.mutex);
    shard.allocations[key] = allocation;
  }
  std::optional<LiveAllocation> take(void* key) {
    Shard& shard = shard_of(key);
    const std::lock_guard<std::mutex> guard(shard.mutex);
    const auto found = shard.allocations.find(key);
    if (found == shard.allocations.end()) return std::nullopt;
    const LiveAllocation allocation = found->second;
    shard.allocations.erase(found);
    return allocation;
  }

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, LiveAllocation> allocations;
  };
  // Addresses of blocks share their low bits.
  Shard& shard_of(void* key) { return shards_[reinterpret_cast<std::uintptr_t>(key) * 0x9E3779B97F4A7C15u >> 60]; }
  std::array<Shard, 16> shards_;
};

}  // namespace alloctrace::torch_side
