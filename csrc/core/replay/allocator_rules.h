// The rules by which torch's native CUDA allocator cuts blocks to size (c10/cuda/CUDACachingAllocator.cpp: round_size,
// should_split), as its settings stand at a moment of the trace. Which free block it takes, and which segments it
// makes, is not modelled: the events tell.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace alloctrace {

constexpr std::uint64_t kMinimumBlock = 512;
constexpr std::uint64_t kSmallRequest = std::uint64_t{1} << 20;          // requests up to here come from small segments
constexpr std::uint64_t kSmallSegment = std::uint64_t{2} << 20;          // all of them are of this size
constexpr std::uint64_t kDefaultLargeSegment = std::uint64_t{20} << 20;  // for requests that would fill less of one

struct AllocatorSettings {
  static constexpr std::size_t kIntervals = 16;  // of roundup_power2_divisions: 1 MiB to 64 GiB, by powers of two
  std::array<std::uint64_t, kIntervals> roundup_power2_divisions{};
  std::uint64_t max_split_size = UINT64_MAX;
  std::uint64_t large_segment_size = kDefaultLargeSegment;
  bool expandable_segments = false;

  // Takes over what the JSON text of a `config` event tells; what it does not tell stays.
  void read(const std::string& json);

  // Size of the block that a request of `bytes` needs.
  std::uint64_t rounded(std::uint64_t bytes) const;
  // Whether what is left of a block of `block` bytes, when `wanted` (rounded) are taken, becomes a block of its own.
  bool splits(std::uint64_t block, std::uint64_t wanted, bool is_large, bool is_expandable) const {
    const std::uint64_t rest = block - wanted;
    if (!is_large || is_expandable) return rest >= kMinimumBlock;
    return wanted < max_split_size && rest > kSmallRequest;
  }
};

}  // namespace alloctrace
