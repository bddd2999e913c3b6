#include "allocator_model.h"

#include <algorithm>

namespace alloctrace::what_if {
namespace {

// Maximum bytes of a request: above any device, and sums do not overflow if a corrupt trace has larger sizes.
constexpr std::uint64_t kMaxModelBytes = std::uint64_t{1} << 50;

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

// From this release on, a memory fraction of 1 sets no limit. Earlier, it also enabled garbage collection.
constexpr TorchRelease kFullFractionIsUnlimited{2, 10};
// From this release on, torch tries on_oom pools before it releases cached memory. Earlier: after.
constexpr TorchRelease kOnOomPoolsFirst{2, 11};
// From this release on, a request must not wait for the device if its pool is captured. Earlier: if any pool is in use.
constexpr TorchRelease kPoolUseAllowsWait{2, 13};

void link(Block* first, Block* second) {
  if (first) first->next = second;
  if (second) second->previous = first;
}

}  // namespace

void AllocatorModel::set_fraction(double fraction, std::uint64_t recorded_limit) {
  if (!(fraction >= 0) || fraction > 1 || (fraction == 1 && release_ >= kFullFractionIsUnlimited)) {
    limit = kNoLimit;
    return;
  }
  limit = static_cast<std::uint64_t>(fraction * static_cast<double>(total_));
  // Truncation must not lose the last byte of the recorded limit.
  if (limit + 1 == recorded_limit) limit = recorded_limit;
}

AllocatorModel::AllocatorModel(Driver driver, TorchRelease release, std::uint64_t total)
    : memory_(std::make_unique<std::pmr::unsynchronized_pool_resource>()),
      driver_(std::move(driver)),
      release_(release),
      total_(total),
      large_(false, nullptr, memory_.get()),
      small_(true, nullptr, memory_.get()),
      awaited_(memory_.get()) {}

PrivatePool& AllocatorModel::private_pool(std::uint32_t pool) {
  return pools_.try_emplace(pool, pool, memory_.get()).first->second;
}

BlockPool& AllocatorModel::pool_for(std::uint64_t size, std::uint32_t pool) {
  const bool is_small = size <= kSmallRequest;
  if (pool == 0) return is_small ? small_ : large_;
  PrivatePool& owner = private_pool(pool);
  return is_small ? owner.small : owner.large;
}

bool AllocatorModel::should_split(const Block& block, std::uint64_t size, bool is_expandable) const {
  if (block.pool->owner && block.pool->owner->is_never_split) return false;
  return settings.splits(block.size, size, !block.pool->is_small, is_expandable);
}

Block* AllocatorModel::allocate(std::uint64_t bytes, std::uint64_t stream, std::uint32_t pool) {
  // Like torch, complete finished frees before an allocation, but not during graph capture.
  if (finished_awaits_ != 0 && may_synchronize(pool)) complete_awaited(finished_awaits_);
  if (bytes > kMaxModelBytes || settings.large_segment_size > kMaxModelBytes) return nullptr;
  const std::uint64_t size = settings.rounded(bytes);
  AllocParams params{stream, size, settings.segment_size(size), &pool_for(size, pool), settings.expandable_segments};
  if (params.pool->owner && params.pool->owner->has_own_allocator) params.is_expandable = false;
  bool is_found = get_free_block(params);
  if (!is_found) {
    if (collects_garbage()) garbage_collect_cached_blocks();
    const bool is_on_oom_first = release_ >= kOnOomPoolsFirst;
    is_found = alloc_block(params, false) || (is_on_oom_first && try_mempool_fallback(params)) ||
               (release_available_cached_blocks(params) && alloc_block(params, false)) ||
               (may_synchronize(pool) && release_cached_blocks(0) && alloc_block(params, true)) ||
               (!is_on_oom_first && try_mempool_fallback(params));
  }
  if (!is_found) return nullptr;
  Block* block = params.block;
  if (should_split(*block, size, params.is_expandable)) {
    Block* const remaining = block;
    block = new_block(*remaining);
    block->size = size;
    link(remaining->previous, block);
    link(block, remaining);
    remaining->address += size;
    remaining->size -= size;
    insert_free(remaining);
  }
  block->is_allocated = true;
  totals_.allocated += block->size;
  totals_.active += block->size;
  totals_.peak_allocated = std::max(totals_.peak_allocated, totals_.allocated);
  totals_.peak_active = std::max(totals_.peak_active, totals_.active);
  return block;
}

void AllocatorModel::await(Block* block) {
  block->await_number = await_count_++;
  block->is_allocated = false;
  block->is_awaited = true;
  totals_.allocated -= block->size;
  awaited_.insert(block);
}

void AllocatorModel::free(Block* block) {
  if (block->is_allocated) totals_.allocated -= block->size;
  if (block->is_awaited) awaited_.erase(block);
  block->is_allocated = block->is_awaited = false;
  totals_.active -= block->size;
  merge(block, block->previous);
  merge(block, block->next);
  insert_free(block);
}

void AllocatorModel::empty_cache(std::uint32_t pool) { release_cached_blocks(pool); }

void AllocatorModel::begin_pool(std::uint32_t pool) {
  std::erase(releasable_pools_, &private_pool(pool));
  pools_in_use_.push_back(pool);
}

void AllocatorModel::set_on_oom(std::uint32_t pool, bool begins) {
  std::erase(on_oom_pools_, &private_pool(pool));
  if (begins) on_oom_pools_.push_back(&private_pool(pool));
}

void AllocatorModel::release_pool(std::uint32_t pool) {
  PrivatePool& owner = private_pool(pool);
  if (std::find(releasable_pools_.begin(), releasable_pools_.end(), &owner) == releasable_pools_.end())
    releasable_pools_.push_back(&owner);
}

void AllocatorModel::set_capture(bool begins) {
  if (!begins && !capturing_pools_.empty()) capturing_pools_.pop_back();
  if (begins && !pools_in_use_.empty()) capturing_pools_.push_back(pools_in_use_.back());
}

bool AllocatorModel::may_synchronize(std::uint32_t pool) const {
  if (release_ < kPoolUseAllowsWait) return pools_in_use_.empty();
  return std::find(capturing_pools_.begin(), capturing_pools_.end(), pool) == capturing_pools_.end();
}

bool AllocatorModel::get_free_block(AllocParams& params) {
  if (collects_garbage()) ++params.pool->searches;
  Block* const block = find_best_fit(params);
  if (!block) return false;
  params.block = block;
  params.pool->blocks.erase(block);
  return true;
}

Block* AllocatorModel::find_best_fit(const AllocParams& params) const {
  const BlockPool& pool = *params.pool;
  const auto end = pool.blocks.end();
  auto at = pool.blocks.lower_bound(BlockKey{params.stream, params.size});
  const auto is_on_stream = [&](auto candidate) { return candidate != end && (*candidate)->stream == params.stream; };
  if (!is_on_stream(at)) return nullptr;
  if ((*at)->range) {
    if (params.is_expandable) {
      // Select the range that needs the least growth.
      const auto growable_bytes = [](const Block* block) {
        return block->size + (block->next && !block->next->is_mapped ? block->next->size : 0);
      };
      for (auto next = std::next(at); (*at)->range && is_on_stream(next) && growable_bytes(*next) < growable_bytes(*at);
           ++next)
        at = next;
    } else {
      do {
        ++at;
      } while (is_on_stream(at) && (*at)->range);
      if (!is_on_stream(at)) return nullptr;
    }
  }
  const std::uint64_t size = (*at)->size;
  if (params.size < settings.max_split_size && size >= settings.max_split_size) return nullptr;
  if (params.size >= settings.max_split_size && size >= params.size + settings.max_non_split_rounding_size)
    return nullptr;
  return *at;
}

// Serve a request of the default pool from an on_oom pool, without expandable segments.
bool AllocatorModel::try_mempool_fallback(AllocParams& params) {
  if (params.pool->owner) return false;
  AllocParams chosen = params;
  std::size_t candidates = 0;
  for (PrivatePool* const owner : on_oom_pools_) {
    AllocParams candidate = params;
    candidate.is_expandable = false;
    candidate.pool = params.pool->is_small ? &owner->small : &owner->large;
    if (find_best_fit(candidate) && candidates++ == 0) chosen = candidate;
  }
  if (candidates == 0) return false;
  if (candidates > 1 && !several_pools) several_pools = sequence;
  params = chosen;
  return get_free_block(params);
}

bool AllocatorModel::alloc_block(AllocParams& params, bool is_retry) {
  if (is_retry) ++totals_.retries;
  if (has_limit() && totals_.reserved + params.segment_size > limit) return false;
  PrivatePool* const owner = params.pool->owner;
  if (params.is_expandable) {
    params.block = try_allocate_expandable_block(params);
    if (params.block && owner) ++owner->segments;
    return params.block != nullptr;
  }
  const std::uint64_t address = driver_.allocate(params.segment_size);
  if (address == 0) return false;
  ++totals_.segments_allocated;
  if (owner) ++owner->segments;
  Block values;
  values.stream = params.stream;
  values.size = params.segment_size;
  values.address = address;
  values.pool = params.pool;
  params.block = new_block(values);
  add_reserved(values.size);
  report_event(EventKind::kSegmentAlloc, values.address, values.size);
  return true;
}

void AllocatorModel::add_reserved(std::uint64_t bytes) {
  totals_.reserved += bytes;
  if (totals_.reserved > totals_.peak_reserved) {
    totals_.peak_reserved = totals_.reserved;
    totals_.peak_reserved_sequence = sequence;
  }
}

void AllocatorModel::report_event(EventKind kind, std::uint64_t address, std::uint64_t size) {
  events.push_back({kind, address, size});
  driver_.consume_expected(events.back());
}

Block* AllocatorModel::try_allocate_expandable_block(const AllocParams& params) {
  Block* candidate = find_expandable_block(params.stream, *params.pool, params.size);
  if (!candidate->is_mapped && !map_block(candidate, std::min(candidate->size, params.size))) return nullptr;
  while (candidate->size < params.size) {
    Block* const next = candidate->next;
    if (!map_block(next, std::min(params.size - candidate->size, next->size))) return nullptr;
    candidate = next;  // map_block() merged the previous candidate into `next`
  }
  params.pool->blocks.erase(candidate);
  return candidate;
}

Block* AllocatorModel::find_expandable_block(std::uint64_t stream, BlockPool& pool, std::uint64_t size) {
  const auto is_usable = [](const Block* block) { return block && block->is_free(); };
  for (auto at = pool.unmapped.lower_bound(stream); at != pool.unmapped.end() && (*at)->stream == stream; ++at) {
    Block* candidate = *at;
    if (is_usable(candidate->previous)) candidate = candidate->previous;
    std::uint64_t bytes = 0;
    for (const Block* block = candidate; bytes < size && is_usable(block); block = block->next) bytes += block->size;
    if (bytes >= size) return candidate;
  }
  auto range = std::make_unique<ExpandableRange>();
  range->unit = settings.mapping_unit(!pool.is_small);
  const std::uint64_t bytes = rounded_up(std::max(total_ + total_ / 8, size), range->unit);
  range->base = driver_.reserve_range(bytes);
  Block values;
  values.stream = stream;
  values.size = bytes;
  values.address = range->base;
  values.pool = &pool;
  values.range = range.get();
  values.is_mapped = false;
  ranges_[range.get()] = std::move(range);
  Block* const block = new_block(values);
  pool.unmapped.insert(block);
  return block;
}

bool AllocatorModel::map_block(Block* block, std::uint64_t size) {
  ExpandableRange& range = *block->range;
  const std::uint64_t begin = (block->address - range.base) / range.unit * range.unit;
  const std::uint64_t mapped = rounded_up(block->address + size - range.base, range.unit) - begin;
  if (!driver_.map(mapped)) return false;
  ++totals_.segments_allocated;
  BlockPool& pool = *block->pool;
  pool.unmapped.erase(block);
  // The first mapping is at the start of the range: only now does a recording contain the range's address.
  if (!range.was_mapped) block->address = range.base = driver_.address_of_map(range.base);
  range.was_mapped = true;
  block->is_mapped = true;
  if (mapped < block->size) {
    Block* const remaining = new_block(*block);
    remaining->is_mapped = false;
    remaining->address = block->address + mapped;
    remaining->size = block->size - mapped;
    link(remaining, block->next);
    link(block, remaining);
    pool.unmapped.insert(remaining);
    block->size = mapped;
  }
  const std::uint64_t address = block->address;
  merge(block, block->previous);
  merge(block, block->next);
  insert_free(block);
  add_reserved(mapped);
  report_event(EventKind::kSegmentMap, address, mapped);
  return true;
}

// Unmap the complete units within a free block.
void AllocatorModel::unmap_block(Block* block) {
  const ExpandableRange& range = *block->range;
  const std::uint64_t first = rounded_up(block->address - range.base, range.unit);
  const std::uint64_t end = (block->address + block->size - range.base) / range.unit * range.unit;
  if (first >= end) return;
  const std::uint64_t address = range.base + first, size = end - first;
  driver_.unmap(size);
  BlockPool& pool = *block->pool;
  pool.blocks.erase(block);
  if (address > block->address) {
    Block* const before = new_block(*block);
    before->size = address - block->address;
    link(block->previous, before);
    link(before, block);
    insert_free(before);
  }
  if (const std::uint64_t remaining = block->address + block->size - (address + size); remaining != 0) {
    Block* const after = new_block(*block);
    after->address = address + size;
    after->size = remaining;
    link(after, block->next);
    link(block, after);
    insert_free(after);
  }
  block->address = address;
  block->size = size;
  block->is_mapped = false;
  merge(block, block->previous);
  merge(block, block->next);
  pool.unmapped.insert(block);
  totals_.reserved -= size;
  if (pool.owner) --pool.owner->segments;
  ++totals_.segments_released;
  report_event(EventKind::kSegmentUnmap, address, size);
}

void AllocatorModel::insert_free(Block* block) {
  block->age_base = block->pool->searches;
  block->pool->blocks.insert(block);
}

// Merge a neighbour with the same mapped state into `block`, which is in no set.
void AllocatorModel::merge(Block* block, Block* neighbour) {
  if (!neighbour || !neighbour->is_free() || neighbour->is_mapped != block->is_mapped) return;
  BlockPool& pool = *block->pool;
  if (neighbour->is_mapped) {
    pool.blocks.erase(neighbour);
  } else {
    pool.unmapped.erase(neighbour);
  }
  if (block->previous == neighbour) {
    block->address = neighbour->address;
    block->previous = neighbour->previous;
    if (block->previous) block->previous->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next) block->next->previous = block;
  }
  block->size += neighbour->size;
  recycle(neighbour);
}

bool AllocatorModel::release_available_cached_blocks(const AllocParams& params) {
  if (settings.max_split_size == UINT64_MAX) return false;
  BlockPool& pool = *params.pool;
  const std::uint64_t min_bytes = std::max(params.size, settings.max_split_size);
  auto at = pool.blocks.lower_bound(BlockKey{params.stream, min_bytes});
  // After a change of max_split_size, parts of a segment can be as large: check that the block is a segment.
  const auto is_segment = [](const Block* block) { return !block->range && !block->is_split(); };
  if (at != pool.blocks.end() && (*at)->stream == params.stream && is_segment(*at)) {
    release_segment(*at);
    return true;
  }
  // No single segment suffices: release several, largest first.
  if (at == pool.blocks.begin()) return false;
  std::uint64_t released = 0;
  --at;
  while (released < min_bytes && (*at)->size >= settings.max_split_size && (*at)->stream == params.stream) {
    Block* const block = *at;
    const bool is_first = at == pool.blocks.begin();
    if (!is_first) --at;
    if (is_segment(block)) {
      released += block->size;
      release_segment(block);
    }
    if (is_first) break;
  }
  return released >= min_bytes;
}

bool AllocatorModel::release_cached_blocks(std::uint32_t pool) {
  if (pool == 0 && may_synchronize(0)) {
    complete_awaited(UINT64_MAX);
    release_blocks(large_);
    release_blocks(small_);
  }
  for (std::size_t i = 0; i < releasable_pools_.size();) {
    PrivatePool& owner = *releasable_pools_[i];
    if (pool != 0 && owner.number != pool) {
      ++i;
      continue;
    }
    if (pool != 0) complete_awaited(UINT64_MAX, &owner);
    release_blocks(owner.small);
    release_blocks(owner.large);
    if (owner.segments == 0) {
      // Keep the pool's entry: unmapped parts still refer to it, and its number may be reused.
      releasable_pools_.erase(releasable_pools_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return true;
}

// Complete awaited frees numbered below `end`, of all pools or of `owner`.
void AllocatorModel::complete_awaited(std::uint64_t end, const PrivatePool* owner) {
  if (!owner) finished_awaits_ = 0;
  for (auto at = awaited_.begin(); at != awaited_.end();) {
    Block* const block = *at++;
    if (block->await_number >= end || (owner && block->pool->owner != owner)) continue;
    if (on_completed) on_completed(block);
    free(block);
  }
}

void AllocatorModel::release_blocks(BlockPool& pool) {
  std::vector<Block*> expandable;
  for (auto at = pool.blocks.begin(); at != pool.blocks.end();) {
    Block* const block = *at++;
    if (block->range) {
      expandable.push_back(block);
    } else if (!block->is_split()) {
      release_segment(block);
    }
  }
  for (Block* const block : expandable) {
    unmap_block(block);
    if (!block->is_mapped && !block->is_split()) {
      pool.unmapped.erase(block);
      ranges_.erase(block->range);
      recycle(block);
    }
  }
}

void AllocatorModel::release_segment(Block* block) {
  ++totals_.segments_released;
  driver_.free(block->address, block->size);
  finished_awaits_ = await_count_;  // cudaFree waits for all streams
  totals_.reserved -= block->size;
  if (block->pool->owner) --block->pool->owner->segments;
  block->pool->blocks.erase(block);
  report_event(EventKind::kSegmentFree, block->address, block->size);
  recycle(block);
}

void AllocatorModel::garbage_collect_cached_blocks() {
  const auto threshold = static_cast<std::uint64_t>(settings.garbage_collection_threshold * static_cast<double>(limit));
  if (totals_.reserved <= threshold) return;
  const std::uint64_t target = totals_.reserved - threshold;
  const auto age_of = [this](const Block* block) { return static_cast<double>(large_.searches - block->age_base); };
  double total_age = 0;
  std::uint64_t reclaimed = 0, count = 0;
  for (const Block* block : large_.blocks) {
    if (block->is_split()) continue;
    total_age += age_of(block);
    ++count;
  }
  for (bool has_freed = true; reclaimed < target && has_freed && count > 0;) {
    const double oldest = total_age / static_cast<double>(count);
    has_freed = false;
    for (auto at = large_.blocks.begin(); at != large_.blocks.end();) {
      Block* const block = *at++;
      if (block->is_split() || block->range || age_of(block) < oldest) continue;
      has_freed = true;
      reclaimed += block->size;
      total_age -= age_of(block);
      --count;
      ++totals_.garbage_collected;
      release_segment(block);
    }
  }
}

Block* AllocatorModel::new_block(const Block& values) {
  Block* block;
  if (unused_blocks_.empty()) {
    block = &blocks_.emplace_back(values);
  } else {
    block = unused_blocks_.back();
    unused_blocks_.pop_back();
    *block = values;
  }
  block->previous = block->next = nullptr;
  block->is_allocated = block->is_awaited = false;
  return block;
}

void AllocatorModel::inherit_segment(const Inherited& segment) {
  inherited_segment_ = segment;
  last_inherited_ = nullptr;
  if (segment.pool != 0) ++private_pool(segment.pool).segments;
  driver_.inherit(segment.address, segment.size);
  add_reserved(segment.size);
}

Block* AllocatorModel::inherit_block(const Inherited& row) {
  Block values;
  values.stream = inherited_segment_.stream;
  values.size = row.size;
  values.address = row.address;
  if (inherited_segment_.pool == 0) {
    values.pool = inherited_segment_.is_large ? &large_ : &small_;
  } else {
    PrivatePool& owner = private_pool(inherited_segment_.pool);
    values.pool = inherited_segment_.is_large ? &owner.large : &owner.small;
  }
  Block* const block = new_block(values);
  link(last_inherited_, block);
  last_inherited_ = block;
  if (row.state == kBlockInactive) {
    insert_free(block);
    return block;
  }
  totals_.active += block->size;
  if (row.state == kBlockAllocated) {
    block->is_allocated = true;
    totals_.allocated += block->size;
  } else {
    block->is_awaited = true;
    awaited_.insert(block);
  }
  totals_.peak_allocated = std::max(totals_.peak_allocated, totals_.allocated);
  totals_.peak_active = std::max(totals_.peak_active, totals_.active);
  return block;
}

}  // namespace alloctrace::what_if
