// Model of torch's native caching allocator, as visible in its events: rounding, the pools of small and large blocks,
// best fit, splitting, merging. Written from torch's rules and independent of csrc/core's replay, so that its traces
// test the replay.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "../../csrc/core/format/event.h"

namespace alloctrace::bench {

using BlockId = std::uint32_t;
constexpr BlockId kNoBlock = UINT32_MAX;

// Receiver of the model's events.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void emit(EventKind kind, std::uint64_t address, std::uint64_t size, int device, int stream) = 0;
};

// One device. Its driver never runs out of memory: addresses are only numbers.
class NativeModel {
 public:
  struct Block {
    std::uint64_t address = 0, size = 0, requested = 0;
    BlockId before = kNoBlock, after = kNoBlock;  // neighbours in the same segment
    std::uint8_t stream = 0;
    bool large = false;
    BlockState state = kBlockInactive;
  };
  struct Segment {
    std::uint64_t size = 0;
    BlockId first = kNoBlock;
  };

  NativeModel(EventSink& sink, int device, std::uint64_t first_address)
      : sink_(sink), device_(device), next_address_(first_address) {}

  BlockId allocate(std::uint64_t requested, int stream) {
    const std::uint64_t size = std::max(kSmallestBlock, round_up(requested, kSmallestBlock));
    const bool large = size > kLargestSmall;
    FreeBlocks& pool = free_[large];
    const auto found = pool.lower_bound({stream, size, 0, 0});
    BlockId id;
    if (found != pool.end() && std::get<0>(*found) == stream) {
      id = std::get<3>(*found);
      pool.erase(found);
    } else {
      id = make_segment(size, large, stream);
    }
    const std::uint64_t rest = blocks_[id].size - size;
    if (large ? rest > kLargestSmall : rest >= kSmallestBlock) split(id, size);
    Block& block = blocks_[id];
    block.requested = requested;
    block.state = kBlockAllocated;
    ++live_;
    sink_.emit(EventKind::kAlloc, block.address, requested, device_, stream);
    return id;
  }

  void request_free(BlockId id) {
    Block& block = blocks_[id];
    block.state = kBlockPendingFree;
    --live_;
    sink_.emit(EventKind::kFreeRequested, block.address, block.requested, device_, block.stream);
  }

  void complete_free(BlockId id) {
    Block& block = blocks_[id];
    sink_.emit(EventKind::kFreeCompleted, block.address, block.requested, device_, block.stream);
    block.state = kBlockInactive;
    block.requested = 0;
    const BlockId before = block.before, after = block.after;
    if (before != kNoBlock && blocks_[before].state == kBlockInactive) {
      free_[block.large].erase(key(before));
      swallow(before, id);
      id = before;
    }
    if (after != kNoBlock && blocks_[after].state == kBlockInactive) {
      free_[blocks_[after].large].erase(key(after));
      swallow(id, after);
    }
    free_[blocks_[id].large].insert(key(id));
  }

  // torch.cuda.empty_cache(): segments without a live block return to the driver, large segments first.
  void release_cached() {
    for (const bool large : {true, false}) {
      for (auto at = free_[large].begin(); at != free_[large].end();) {
        const BlockId id = std::get<3>(*at);
        const Block block = blocks_[id];
        if (block.before != kNoBlock || block.after != kNoBlock) {
          ++at;
          continue;
        }
        sink_.emit(EventKind::kSegmentFree, block.address, block.size, device_, block.stream);
        at = free_[large].erase(at);
        segments_.erase(block.address);
        driver_free_.emplace(block.size, block.address);
        reserved_ -= block.size;
        spare_.push_back(id);
      }
    }
  }

  const Block& block(BlockId id) const { return blocks_[id]; }
  const std::map<std::uint64_t, Segment>& segments() const { return segments_; }  // by address
  std::uint64_t live() const { return live_; }
  std::uint64_t reserved() const { return reserved_; }
  std::uint64_t segments_made() const { return segments_made_; }

 private:
  static constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  static constexpr std::uint64_t kSmallestBlock = 512, kLargestSmall = kMiB, kSmallSegment = 2 * kMiB;
  static constexpr std::uint64_t kLargeSegment = 20 * kMiB, kOwnSegmentFrom = 10 * kMiB, kSegmentRounding = 2 * kMiB;
  using FreeKey = std::tuple<int, std::uint64_t, std::uint64_t, BlockId>;  // stream, size, address: torch's order
  using FreeBlocks = std::set<FreeKey>;

  static std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }
  FreeKey key(BlockId id) const {
    const Block& block = blocks_[id];
    return {block.stream, block.size, block.address, id};
  }

  BlockId make_block(const Block& block) {
    if (spare_.empty()) {
      blocks_.push_back(block);
      return static_cast<BlockId>(blocks_.size() - 1);
    }
    const BlockId id = spare_.back();
    spare_.pop_back();
    blocks_[id] = block;
    return id;
  }

  BlockId make_segment(std::uint64_t block_size, bool large, int stream) {
    const std::uint64_t size = !large                         ? kSmallSegment
                               : block_size < kOwnSegmentFrom ? kLargeSegment
                                                              : round_up(block_size, kSegmentRounding);
    std::uint64_t address = next_address_;
    // Like a driver, reuse returned addresses.
    if (const auto again = driver_free_.find(size); again != driver_free_.end()) {
      address = again->second;
      driver_free_.erase(again);
    } else {
      next_address_ += size;
    }
    Block block;
    block.address = address;
    block.size = size;
    block.stream = static_cast<std::uint8_t>(stream);
    block.large = large;
    const BlockId id = make_block(block);
    segments_[address] = {size, id};
    reserved_ += size;
    ++segments_made_;
    sink_.emit(EventKind::kSegmentAlloc, address, size, device_, stream);
    return id;
  }

  void split(BlockId id, std::uint64_t size) {
    Block rest = blocks_[id];
    rest.address += size;
    rest.size -= size;
    rest.before = id;
    rest.state = kBlockInactive;
    rest.requested = 0;
    const BlockId rest_id = make_block(rest);
    if (rest.after != kNoBlock) blocks_[rest.after].before = rest_id;
    blocks_[id].after = rest_id;
    blocks_[id].size = size;
    free_[rest.large].insert(key(rest_id));
  }

  // `right` becomes part of its neighbour `left`.
  void swallow(BlockId left, BlockId right) {
    blocks_[left].size += blocks_[right].size;
    blocks_[left].after = blocks_[right].after;
    if (blocks_[right].after != kNoBlock) blocks_[blocks_[right].after].before = left;
    spare_.push_back(right);
  }

  EventSink& sink_;
  int device_;
  std::uint64_t next_address_;
  std::vector<Block> blocks_;
  std::vector<BlockId> spare_;
  FreeBlocks free_[2];  // small, large
  std::map<std::uint64_t, Segment> segments_;
  std::multimap<std::uint64_t, std::uint64_t> driver_free_;  // size -> address
  std::uint64_t live_ = 0, reserved_ = 0, segments_made_ = 0;
};

}  // namespace alloctrace::bench
