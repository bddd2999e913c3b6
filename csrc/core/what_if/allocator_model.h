// What torch's native caching allocator would do with its memory on one device: which free block it takes, when it asks
// the driver, what it gives back (c10/cuda/CUDACachingAllocator.cpp of torch 2.11, DeviceCachingAllocator).
//
// The replay mirrors what a recorded allocator did; this one decides by itself, by the same rules of cutting and
// rounding (replay/allocator_rules.h). It is held to torch's own in tests/what_if.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <vector>

#include "../replay/allocator_rules.h"
#include "driver.h"

namespace alloctrace::what_if {

struct BlockPool;

// An expandable segment: a range of addresses, mapped unit by unit.
struct ExpandableRange {
  std::uint64_t base = 0, unit = 0;
  bool was_mapped = false;
};

// torch's Block: a part of a segment.
struct Block {
  std::uint64_t size = 0, address = 0;
  BlockPool* pool = nullptr;
  Block *previous = nullptr, *next = nullptr;  // neighbours in the segment
  ExpandableRange* range = nullptr;
  std::uint64_t age_base = 0;       // searches of its pool when it became free
  std::uint64_t awaited_since = 0;  // counted in awaits
  std::uint64_t stream = 0;
  std::uint32_t number = 0;  // the program's, while it has the block or waits for it
  bool is_allocated = false, is_mapped = true;
  bool is_awaited = false;  // freed, but another stream may use it

  bool is_split() const { return previous || next; }
  bool is_free() const { return !is_allocated && !is_awaited; }
};

// torch orders free blocks by stream, size and address. (The last comparison is for addresses that a recording
// repeats.)
struct BlockKey {
  std::uint64_t stream = 0;
  std::uint64_t size = 0;
};
struct BySize {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size != b->size) return a->size < b->size;
    if (a->address != b->address) return a->address < b->address;
    return std::less<>()(a, b);
  }
  bool operator()(const Block* a, const BlockKey& b) const {
    return a->stream != b.stream ? a->stream < b.stream : a->size < b.size;
  }
};
struct ByAddress {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->address != b->address) return a->address < b->address;
    return std::less<>()(a, b);
  }
  bool operator()(const Block* a, std::uint64_t stream) const { return a->stream < stream; }
};

struct PrivatePool;

// torch's BlockPool: the free blocks of one kind.
struct BlockPool {
  BlockPool(bool small, PrivatePool* of, std::pmr::memory_resource* memory)
      : is_small(small), owner(of), blocks(memory), unmapped(memory) {}
  bool is_small;
  PrivatePool* owner;  // nullptr: the default pool
  std::pmr::set<Block*, BySize> blocks;
  std::pmr::set<Block*, ByAddress> unmapped;  // parts of expandable segments
  std::uint64_t searches = 0;                 // counted only where garbage is collected
};
struct PrivatePool {
  PrivatePool(std::uint32_t pool, std::pmr::memory_resource* memory)
      : number(pool), large(false, this, memory), small(true, this, memory) {}
  std::uint32_t number;
  std::uint64_t segments = 0;  // or mappings
  bool is_never_split = false;
  bool has_own_memory = false;  // an allocator of its own; it asks the same driver for as much as torch asks it
  BlockPool large, small;
};

// Bytes, but for the counts.
struct ModelTotals {
  std::uint64_t reserved = 0, allocated = 0, active = 0;
  std::uint64_t peak_reserved = 0, peak_allocated = 0, peak_active = 0;
  std::uint64_t peak_reserved_sequence = 0;
  std::uint64_t retries = 0;     // all cached memory was given back to serve a request
  std::uint64_t taken = 0;       // segments made, and mappings
  std::uint64_t given_back = 0;  // segments freed, and unmappings
  std::uint64_t garbage = 0;     // of them, those that the garbage collection freed
};

// Whose rules are followed.
struct TorchRelease {
  int major = 2, minor = 11;
  auto operator<=>(const TorchRelease&) const = default;
};

class AllocatorModel {
 public:
  // total: bytes of the device, by which expandable ranges are made.
  AllocatorModel(Driver driver, TorchRelease release, std::uint64_t total);

  AllocatorSettings settings;
  // Bytes that the process may reserve.
  std::uint64_t limit = kNoLimit;
  // The same as a share of the device (set_per_process_memory_fraction); recorded: what it came to on the recorded one.
  void set_fraction(double fraction, std::uint64_t recorded);
  std::uint64_t sequence = 0;  // of the request that is served
  // Segment events since the caller last emptied it.
  std::vector<SegmentEvent> events;

  Driver& driver() { return driver_; }
  const Driver& driver() const { return driver_; }
  const ModelTotals& totals() const { return totals_; }

  // nullptr: out of memory.
  Block* allocate(std::uint64_t bytes, std::uint64_t stream, std::uint32_t pool);
  // The program gave the block up, and another stream may use it.
  void await(Block* block);
  // The block can be used again.
  void free(Block* block);
  void empty_cache(std::uint32_t pool);
  void begin_pool(std::uint32_t pool);
  void end_pool(std::uint32_t pool) { std::erase(using_, pool); }
  void release_pool(std::uint32_t pool);
  void never_split(std::uint32_t pool) { private_pool(pool).is_never_split = true; }
  void set_own_memory(std::uint32_t pool) { private_pool(pool).has_own_memory = true; }
  void set_on_oom(std::uint32_t pool, bool begins);
  // A graph is captured into the pool that was begun last, or no longer.
  void set_capture(bool begins);
  // The first request for which one of several pools on_oom was taken: which of them torch takes is not known.
  std::optional<std::uint64_t> several_pools;

  // Memory from before the first request: a segment, then its blocks in order.
  void inherit_segment(const Inherited& segment);
  Block* inherit_block(const Inherited& block);
  // Called for each block that was awaited and completes because a request forced it to.
  std::function<void(Block*)> on_completed;

 private:
  struct Wanted {
    std::uint64_t stream, size, segment_size;
    BlockPool* pool;
    bool is_expandable;
    Block* found = nullptr;
  };

  bool has_limit() const { return limit != kNoLimit; }
  // Whether torch may wait for the device for a request of the pool, and give back what is not of private pools.
  bool may_wait(std::uint32_t pool) const;
  bool collects() const { return has_limit() && settings.garbage_collection_threshold > 0; }
  PrivatePool& private_pool(std::uint32_t pool);
  BlockPool& pool_for(std::uint64_t size, std::uint32_t pool);
  bool is_split(const Block& block, std::uint64_t size, bool is_expandable) const;

  Block* best_free(const Wanted& wanted) const;
  bool find_free(Wanted& wanted);
  bool find_on_oom(Wanted& wanted);
  bool make_segment(Wanted& wanted, bool is_retry);
  bool release_large_enough(const Wanted& wanted);
  bool release_cached(std::uint32_t pool);
  void collect_garbage();
  void complete_until(std::uint64_t await, const PrivatePool* of = nullptr);
  void release_blocks(BlockPool& pool);
  void release_segment(Block* block);

  Block* expand(const Wanted& wanted);
  Block* expandable_block(std::uint64_t stream, BlockPool& pool, std::uint64_t size);
  bool map(Block* block, std::uint64_t size);
  void unmap(Block* block);

  void insert_free(Block* block);
  void merge(Block* block, Block* neighbour);
  Block* new_block(const Block& like);
  void drop(Block* block) { unused_.push_back(block); }
  void grow(std::uint64_t bytes);
  void tell(EventKind kind, std::uint64_t address, std::uint64_t size);

  std::unique_ptr<std::pmr::unsynchronized_pool_resource> memory_;
  Driver driver_;
  TorchRelease release_;
  std::uint64_t total_;
  ModelTotals totals_;
  std::deque<Block> blocks_;
  std::vector<Block*> unused_;
  BlockPool large_, small_;
  std::map<std::uint32_t, PrivatePool> pools_;
  std::vector<PrivatePool*> releasable_, on_oom_;
  std::vector<std::uint32_t> using_;     // pools that allocations go to
  std::vector<std::uint32_t> captured_;  // those that a graph is captured into
  std::pmr::set<Block*, ByAddress> awaited_;
  std::uint64_t awaits_ = 0;  // counted
  std::uint64_t done_ = 0;    // those below it are done: a call of the driver has waited for the device
  std::map<const ExpandableRange*, std::unique_ptr<ExpandableRange>> ranges_;
  Block* last_inherited_ = nullptr;
  Inherited inherited_segment_;
};

}  // namespace alloctrace::what_if
