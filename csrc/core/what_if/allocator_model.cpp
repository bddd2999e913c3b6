#include "allocator_model.h"

#include <algorithm>

namespace alloctrace::what_if {
namespace {

// A damaged trace may say anything; no device has so much, and sums of these do not overflow.
constexpr std::uint64_t kMost = std::uint64_t{1} << 50;

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Since then a memory fraction of 1 is none. Before, garbage is collected with it.
constexpr TorchRelease kAllIsNoLimit{2, 10};
// Since then torch takes blocks of pools on_oom before it gives back any cached memory, not after.
constexpr TorchRelease kPoolsOnOomFirst{2, 11};
// Since then a pool in use keeps torch from waiting for the device only if a graph is captured into it, and for its own
// requests.
constexpr TorchRelease kPoolsWait{2, 13};

void link(Block* first, Block* second) {
  if (first) first->next = second;
  if (second) second->previous = first;
}

}  // namespace

void AllocatorModel::set_fraction(double fraction, std::uint64_t recorded) {
  if (!(fraction >= 0) || fraction > 1 || (fraction == 1 && release_ >= kAllIsNoLimit)) {
    limit = kNoLimit;
    return;
  }
  limit = static_cast<std::uint64_t>(fraction * static_cast<double>(total_));
  // On the recorded device no byte is lost to rounding.
  if (limit + 1 == recorded) limit = recorded;
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
  PrivatePool& own = private_pool(pool);
  return is_small ? own.small : own.large;
}

bool AllocatorModel::is_split(const Block& block, std::uint64_t size, bool is_expandable) const {
  if (block.pool->owner && block.pool->owner->is_never_split) return false;
  return settings.splits(block.size, size, !block.pool->is_small, is_expandable);
}

Block* AllocatorModel::allocate(std::uint64_t bytes, std::uint64_t stream, std::uint32_t pool) {
  // torch looks for what is done before each allocation, but not while a graph is captured.
  if (done_ != 0 && may_wait(pool)) complete_until(done_);
  if (bytes > kMost || settings.large_segment_size > kMost) return nullptr;
  const std::uint64_t size = settings.rounded(bytes);
  Wanted wanted{stream, size, settings.segment_size(size), &pool_for(size, pool), settings.expandable_segments};
  if (wanted.pool->owner && wanted.pool->owner->has_own_memory) wanted.is_expandable = false;
  bool is_found = find_free(wanted);
  if (!is_found) {
    if (collects()) collect_garbage();
    const bool is_early = release_ >= kPoolsOnOomFirst;
    is_found = make_segment(wanted, false) || (is_early && find_on_oom(wanted)) ||
               (release_large_enough(wanted) && make_segment(wanted, false)) ||
               (may_wait(pool) && release_cached(0) && make_segment(wanted, true)) ||
               (!is_early && find_on_oom(wanted));
  }
  if (!is_found) return nullptr;
  Block* block = wanted.found;
  if (is_split(*block, size, wanted.is_expandable)) {
    Block* const rest = block;
    block = new_block(*rest);
    block->size = size;
    link(rest->previous, block);
    link(block, rest);
    rest->address += size;
    rest->size -= size;
    insert_free(rest);
  }
  block->is_allocated = true;
  totals_.allocated += block->size;
  totals_.active += block->size;
  totals_.peak_allocated = std::max(totals_.peak_allocated, totals_.allocated);
  totals_.peak_active = std::max(totals_.peak_active, totals_.active);
  return block;
}

void AllocatorModel::await(Block* block) {
  block->awaited_since = awaits_++;
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

void AllocatorModel::empty_cache(std::uint32_t pool) { release_cached(pool); }

void AllocatorModel::begin_pool(std::uint32_t pool) {
  std::erase(releasable_, &private_pool(pool));
  using_.push_back(pool);
}

void AllocatorModel::set_on_oom(std::uint32_t pool, bool begins) {
  std::erase(on_oom_, &private_pool(pool));
  if (begins) on_oom_.push_back(&private_pool(pool));
}

void AllocatorModel::release_pool(std::uint32_t pool) {
  PrivatePool& own = private_pool(pool);
  if (std::find(releasable_.begin(), releasable_.end(), &own) == releasable_.end()) releasable_.push_back(&own);
}

void AllocatorModel::set_capture(bool begins) {
  if (!begins && !captured_.empty()) captured_.pop_back();
  if (begins && !using_.empty()) captured_.push_back(using_.back());
}

bool AllocatorModel::may_wait(std::uint32_t pool) const {
  if (release_ < kPoolsWait) return using_.empty();
  return std::find(captured_.begin(), captured_.end(), pool) == captured_.end();
}

// torch: get_free_block
bool AllocatorModel::find_free(Wanted& wanted) {
  if (collects()) ++wanted.pool->searches;
  Block* const found = best_free(wanted);
  if (!found) return false;
  wanted.found = found;
  wanted.pool->blocks.erase(found);
  return true;
}

Block* AllocatorModel::best_free(const Wanted& wanted) const {
  const BlockPool& pool = *wanted.pool;
  const auto end = pool.blocks.end();
  auto at = pool.blocks.lower_bound(BlockKey{wanted.stream, wanted.size});
  const auto is_ours = [&](auto found) { return found != end && (*found)->stream == wanted.stream; };
  if (!is_ours(at)) return nullptr;
  if ((*at)->range) {
    if (wanted.is_expandable) {
      // Of several ranges, the one that needs the least growth.
      const auto room = [](const Block* block) {
        return block->size + (block->next && !block->next->is_mapped ? block->next->size : 0);
      };
      for (auto next = std::next(at); (*at)->range && is_ours(next) && room(*next) < room(*at); ++next) at = next;
    } else {
      do {
        ++at;
      } while (is_ours(at) && (*at)->range);
      if (!is_ours(at)) return nullptr;
    }
  }
  const std::uint64_t size = (*at)->size;
  if (wanted.size < settings.max_split_size && size >= settings.max_split_size) return nullptr;
  if (wanted.size >= settings.max_split_size && size >= wanted.size + settings.max_non_split_rounding_size)
    return nullptr;
  return *at;
}

// torch: try_mempool_fallback. A request of the default pool gets a block of another one, as if there were no
// expandable segments.
bool AllocatorModel::find_on_oom(Wanted& wanted) {
  if (wanted.pool->owner) return false;
  Wanted taken = wanted;
  std::size_t able = 0;
  for (PrivatePool* const own : on_oom_) {
    Wanted tried = wanted;
    tried.is_expandable = false;
    tried.pool = wanted.pool->is_small ? &own->small : &own->large;
    if (best_free(tried) && able++ == 0) taken = tried;
  }
  if (able == 0) return false;
  if (able > 1 && !several_pools) several_pools = sequence;
  wanted = taken;
  return find_free(wanted);
}

// torch: alloc_block
bool AllocatorModel::make_segment(Wanted& wanted, bool is_retry) {
  if (is_retry) ++totals_.retries;
  if (has_limit() && totals_.reserved + wanted.segment_size > limit) return false;
  PrivatePool* const owner = wanted.pool->owner;
  if (wanted.is_expandable) {
    wanted.found = expand(wanted);
    if (wanted.found && owner) ++owner->segments;
    return wanted.found != nullptr;
  }
  const std::uint64_t address = driver_.allocate(wanted.segment_size);
  if (address == 0) return false;
  ++totals_.taken;
  if (owner) ++owner->segments;
  Block made;
  made.stream = wanted.stream;
  made.size = wanted.segment_size;
  made.address = address;
  made.pool = wanted.pool;
  wanted.found = new_block(made);
  grow(made.size);
  tell(EventKind::kSegmentAlloc, made.address, made.size);
  return true;
}

void AllocatorModel::grow(std::uint64_t bytes) {
  totals_.reserved += bytes;
  if (totals_.reserved > totals_.peak_reserved) {
    totals_.peak_reserved = totals_.reserved;
    totals_.peak_reserved_sequence = sequence;
  }
}

void AllocatorModel::tell(EventKind kind, std::uint64_t address, std::uint64_t size) {
  events.push_back({kind, address, size});
  driver_.happened(events.back());
}

// torch: try_allocate_expandable_block
Block* AllocatorModel::expand(const Wanted& wanted) {
  Block* candidate = expandable_block(wanted.stream, *wanted.pool, wanted.size);
  if (!candidate->is_mapped && !map(candidate, std::min(candidate->size, wanted.size))) return nullptr;
  while (candidate->size < wanted.size) {
    Block* const next = candidate->next;
    if (!map(next, std::min(wanted.size - candidate->size, next->size))) return nullptr;
    candidate = next;  // it has taken in the one before it
  }
  wanted.pool->blocks.erase(candidate);
  return candidate;
}

// torch: find_expandable_block
Block* AllocatorModel::expandable_block(std::uint64_t stream, BlockPool& pool, std::uint64_t size) {
  const auto is_usable = [](const Block* block) { return block && block->is_free(); };
  for (auto at = pool.unmapped.lower_bound(stream); at != pool.unmapped.end() && (*at)->stream == stream; ++at) {
    Block* candidate = *at;
    if (is_usable(candidate->previous)) candidate = candidate->previous;
    std::uint64_t bytes = 0;
    for (const Block* block = candidate; bytes < size && is_usable(block); block = block->next) bytes += block->size;
    if (bytes >= size) return candidate;
  }
  auto range = std::make_unique<ExpandableRange>();
  range->unit = pool.is_small ? kSmallSegment : settings.large_segment_size;
  const std::uint64_t bytes = rounded_up(std::max(total_ + total_ / 8, size), range->unit);
  range->base = driver_.reserve_range(bytes);
  Block made;
  made.stream = stream;
  made.size = bytes;
  made.address = range->base;
  made.pool = &pool;
  made.range = range.get();
  made.is_mapped = false;
  ranges_[range.get()] = std::move(range);
  Block* const block = new_block(made);
  pool.unmapped.insert(block);
  return block;
}

// torch: map_block
bool AllocatorModel::map(Block* block, std::uint64_t size) {
  ExpandableRange& range = *block->range;
  const std::uint64_t begin = (block->address - range.base) / range.unit * range.unit;
  const std::uint64_t mapped = rounded_up(block->address + size - range.base, range.unit) - begin;
  if (!driver_.map(mapped)) return false;
  ++totals_.taken;
  BlockPool& pool = *block->pool;
  pool.unmapped.erase(block);
  // The first mapping is at the range's beginning. A recording tells it, and not before.
  if (!range.was_mapped) block->address = range.base = driver_.address_of_map(range.base);
  range.was_mapped = true;
  block->is_mapped = true;
  if (mapped < block->size) {
    Block* const rest = new_block(*block);
    rest->is_mapped = false;
    rest->address = block->address + mapped;
    rest->size = block->size - mapped;
    link(rest, block->next);
    link(block, rest);
    pool.unmapped.insert(rest);
    block->size = mapped;
  }
  const std::uint64_t address = block->address;
  merge(block, block->previous);
  merge(block, block->next);
  insert_free(block);
  grow(mapped);
  tell(EventKind::kSegmentMap, address, mapped);
  return true;
}

// torch: unmap_block. The whole units of a free block.
void AllocatorModel::unmap(Block* block) {
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
  if (const std::uint64_t rest = block->address + block->size - (address + size); rest != 0) {
    Block* const after = new_block(*block);
    after->address = address + size;
    after->size = rest;
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
  ++totals_.given_back;
  tell(EventKind::kSegmentUnmap, address, size);
}

void AllocatorModel::insert_free(Block* block) {
  block->age_base = block->pool->searches;
  block->pool->blocks.insert(block);
}

// `block`, which is in no set, takes in a neighbour that is free or unmapped as it is.
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
  drop(neighbour);
}

// torch: release_available_cached_blocks
bool AllocatorModel::release_large_enough(const Wanted& wanted) {
  if (settings.max_split_size == UINT64_MAX) return false;
  BlockPool& pool = *wanted.pool;
  const std::uint64_t least = std::max(wanted.size, settings.max_split_size);
  auto at = pool.blocks.lower_bound(BlockKey{wanted.stream, least});
  // Only whole segments; where the setting has changed, parts of one may be as large.
  const auto is_segment = [](const Block* block) { return !block->range && !block->is_split(); };
  if (at != pool.blocks.end() && (*at)->stream == wanted.stream && is_segment(*at)) {
    release_segment(*at);
    return true;
  }
  // None is large enough: several, from the largest down.
  if (at == pool.blocks.begin()) return false;
  std::uint64_t released = 0;
  --at;
  while (released < least && (*at)->size >= settings.max_split_size && (*at)->stream == wanted.stream) {
    Block* const block = *at;
    const bool is_first = at == pool.blocks.begin();
    if (!is_first) --at;
    if (is_segment(block)) {
      released += block->size;
      release_segment(block);
    }
    if (is_first) break;
  }
  return released >= least;
}

// torch: release_cached_blocks
bool AllocatorModel::release_cached(std::uint32_t pool) {
  if (pool == 0 && may_wait(0)) {
    complete_until(UINT64_MAX);
    release_blocks(large_);
    release_blocks(small_);
  }
  for (std::size_t i = 0; i < releasable_.size();) {
    PrivatePool& own = *releasable_[i];
    if (pool != 0 && own.number != pool) {
      ++i;
      continue;
    }
    if (pool != 0) complete_until(UINT64_MAX, &own);
    release_blocks(own.small);
    release_blocks(own.large);
    if (own.segments == 0) {
      // Its parts may still be there, without memory; a later pool may have its number again.
      releasable_.erase(releasable_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return true;
}

// What was given up before; of all, or of one pool.
void AllocatorModel::complete_until(std::uint64_t await, const PrivatePool* of) {
  if (!of) done_ = 0;
  for (auto at = awaited_.begin(); at != awaited_.end();) {
    Block* const block = *at++;
    if (block->awaited_since >= await || (of && block->pool->owner != of)) continue;
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
    unmap(block);
    if (!block->is_mapped && !block->is_split()) {
      pool.unmapped.erase(block);
      ranges_.erase(block->range);
      drop(block);
    }
  }
}

void AllocatorModel::release_segment(Block* block) {
  ++totals_.given_back;
  driver_.free(block->address, block->size);
  done_ = awaits_;  // cudaFree waits for all streams
  totals_.reserved -= block->size;
  if (block->pool->owner) --block->pool->owner->segments;
  block->pool->blocks.erase(block);
  tell(EventKind::kSegmentFree, block->address, block->size);
  drop(block);
}

// torch: garbage_collect_cached_blocks
void AllocatorModel::collect_garbage() {
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
      ++totals_.garbage;
      release_segment(block);
    }
  }
}

Block* AllocatorModel::new_block(const Block& like) {
  Block* block;
  if (unused_.empty()) {
    block = &blocks_.emplace_back(like);
  } else {
    block = unused_.back();
    unused_.pop_back();
    *block = like;
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
  grow(segment.size);
}

Block* AllocatorModel::inherit_block(const Inherited& row) {
  Block made;
  made.stream = inherited_segment_.stream;
  made.size = row.size;
  made.address = row.address;
  if (inherited_segment_.pool == 0) {
    made.pool = inherited_segment_.is_large ? &large_ : &small_;
  } else {
    PrivatePool& own = private_pool(inherited_segment_.pool);
    made.pool = inherited_segment_.is_large ? &own.large : &own.small;
  }
  Block* const block = new_block(made);
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
