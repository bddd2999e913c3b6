// Model of torch's native caching allocator on one device: selects free blocks, allocates and frees segments
// (DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp of torch 2.11).
//
// The replay repeats recorded decisions; the model makes its own, with the same rules of splitting and rounding
// (replay/allocator_rules.h). Private functions are named as in torch; tests/what_if compares the two.
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

// An expandable segment: an address range that is mapped in units.
struct ExpandableRange {
  std::uint64_t base = 0, unit = 0;
  bool was_mapped = false;
};

struct Block {
  std::uint64_t size = 0, address = 0;
  BlockPool* pool = nullptr;
  Block *previous = nullptr, *next = nullptr;  // neighbours in the segment
  ExpandableRange* range = nullptr;
  std::uint64_t age_base = 0;      // BlockPool::searches when the block became free
  std::uint64_t await_number = 0;  // number of the await() call, from 0
  std::uint64_t stream = 0;
  std::uint32_t number = 0;  // in the requests, until the free completes
  bool is_allocated = false, is_mapped = true;
  bool is_awaited = false;  // freed by the program, but another stream may still use it

  bool is_split() const { return previous || next; }
  bool is_free() const { return !is_allocated && !is_awaited; }
};

// torch orders free blocks by stream, size and address. Pointers differ if a recording repeats an address.
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

// Free blocks of one size class; BlockPool in torch.
struct BlockPool {
  BlockPool(bool small, PrivatePool* owning_pool, std::pmr::memory_resource* memory)
      : is_small(small), owner(owning_pool), blocks(memory), unmapped(memory) {}
  bool is_small;
  PrivatePool* owner;  // nullptr: the default pool
  std::pmr::set<Block*, BySize> blocks;
  std::pmr::set<Block*, ByAddress> unmapped;  // parts of expandable segments without memory
  std::uint64_t searches = 0;                 // counted only if garbage collection is on
};
struct PrivatePool {
  PrivatePool(std::uint32_t pool, std::pmr::memory_resource* memory)
      : number(pool), large(false, this, memory), small(true, this, memory) {}
  std::uint32_t number;
  std::uint64_t segments = 0;  // plus mappings of expandable segments
  bool is_never_split = false;
  bool has_own_allocator = false;  // segments come from a custom allocator; modelled as the driver
  BlockPool large, small;
};

// Totals in bytes, then counts.
struct ModelTotals {
  std::uint64_t reserved = 0, allocated = 0, active = 0;
  std::uint64_t peak_reserved = 0, peak_allocated = 0, peak_active = 0;
  std::uint64_t peak_reserved_sequence = 0;
  std::uint64_t retries = 0;             // requests for which all cached memory was released
  std::uint64_t segments_allocated = 0;  // plus mappings
  std::uint64_t segments_released = 0;   // plus unmappings
  std::uint64_t garbage_collected = 0;   // segments freed by garbage collection
};

// torch release whose rules the model follows.
struct TorchRelease {
  int major = 2, minor = 11;
  auto operator<=>(const TorchRelease&) const = default;
};

class AllocatorModel {
 public:
  // total: bytes of the device; determines the size of an expandable range.
  AllocatorModel(Driver driver, TorchRelease release, std::uint64_t total);

  AllocatorSettings settings;
  std::uint64_t limit = kNoLimit;  // bytes that the process may reserve
  // Set `limit` to a share of the device (set_per_process_memory_fraction). recorded_limit: its recorded bytes.
  void set_fraction(double fraction, std::uint64_t recorded_limit);
  std::uint64_t sequence = 0;        // of the current request
  std::vector<SegmentEvent> events;  // segment events since the caller last cleared the vector

  Driver& driver() { return driver_; }
  const Driver& driver() const { return driver_; }
  const ModelTotals& totals() const { return totals_; }

  // Return the allocated block, or nullptr if out of memory.
  Block* allocate(std::uint64_t bytes, std::uint64_t stream, std::uint32_t pool);
  void await(Block* block);  // mark a block as freed by the program but possibly in use by another stream
  void free(Block* block);   // make a block available for reuse
  void empty_cache(std::uint32_t pool);
  void begin_pool(std::uint32_t pool);
  void end_pool(std::uint32_t pool) { std::erase(pools_in_use_, pool); }
  void release_pool(std::uint32_t pool);
  void set_never_split(std::uint32_t pool) { private_pool(pool).is_never_split = true; }
  void set_own_allocator(std::uint32_t pool) { private_pool(pool).has_own_allocator = true; }
  void set_on_oom(std::uint32_t pool, bool begins);
  void set_capture(bool begins);  // begin or end graph capture into the pool whose use began last
  // First request that several on_oom pools could serve: torch's choice among them is not known.
  std::optional<std::uint64_t> several_pools;

  // Add memory that existed before the first request: a segment, then its blocks in address order.
  void inherit_segment(const Inherited& segment);
  Block* inherit_block(const Inherited& block);
  std::function<void(Block*)> on_completed;  // called for each awaited block that the model completes by waiting

 private:
  struct AllocParams {
    std::uint64_t stream, size, segment_size;
    BlockPool* pool;
    bool is_expandable;
    Block* block = nullptr;
  };

  bool has_limit() const { return limit != kNoLimit; }
  // Return whether a request of the pool may wait for the device and release the default pool's cached blocks.
  bool may_synchronize(std::uint32_t pool) const;
  bool collects_garbage() const { return has_limit() && settings.garbage_collection_threshold > 0; }
  PrivatePool& private_pool(std::uint32_t pool);
  BlockPool& pool_for(std::uint64_t size, std::uint32_t pool);
  bool should_split(const Block& block, std::uint64_t size, bool is_expandable) const;

  Block* find_best_fit(const AllocParams& params) const;
  bool get_free_block(AllocParams& params);
  bool try_mempool_fallback(AllocParams& params);
  bool alloc_block(AllocParams& params, bool is_retry);
  bool release_available_cached_blocks(const AllocParams& params);
  bool release_cached_blocks(std::uint32_t pool);
  void garbage_collect_cached_blocks();
  void complete_awaited(std::uint64_t end, const PrivatePool* owner = nullptr);
  void release_blocks(BlockPool& pool);
  void release_segment(Block* block);

  Block* try_allocate_expandable_block(const AllocParams& params);
  Block* find_expandable_block(std::uint64_t stream, BlockPool& pool, std::uint64_t size);
  bool map_block(Block* block, std::uint64_t size);
  void unmap_block(Block* block);

  void insert_free(Block* block);
  void merge(Block* block, Block* neighbour);
  Block* new_block(const Block& values);
  void recycle(Block* block) { unused_blocks_.push_back(block); }
  void add_reserved(std::uint64_t bytes);
  void report_event(EventKind kind, std::uint64_t address, std::uint64_t size);

  std::unique_ptr<std::pmr::unsynchronized_pool_resource> memory_;
  Driver driver_;
  TorchRelease release_;
  std::uint64_t total_;
  ModelTotals totals_;
  std::deque<Block> blocks_;
  std::vector<Block*> unused_blocks_;
  BlockPool large_, small_;
  std::map<std::uint32_t, PrivatePool> pools_;
  std::vector<PrivatePool*> releasable_pools_, on_oom_pools_;
  std::vector<std::uint32_t> pools_in_use_;     // pools that allocations are routed to
  std::vector<std::uint32_t> capturing_pools_;  // pools with an active graph capture
  std::pmr::set<Block*, ByAddress> awaited_;
  std::uint64_t await_count_ = 0;      // calls of await()
  std::uint64_t finished_awaits_ = 0;  // smaller await numbers are complete: cudaFree has waited for all streams
  std::map<const ExpandableRange*, std::unique_ptr<ExpandableRange>> ranges_;
  Block* last_inherited_ = nullptr;
  Inherited inherited_segment_;
};

}  // namespace alloctrace::what_if
