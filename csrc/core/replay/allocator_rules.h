// The rules by which torch's native CUDA allocator cuts blocks to size (c10/cuda/CUDACachingAllocator.cpp: round_size,
// should_split), with its settings at a position of the trace. Which free block it takes and which segments it makes
// the replay leaves to the events; what_if/ models it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace alloctrace {

// The one copy of these numbers: Python has them from _replay. In bytes.
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kMinimumBlock = 512;           // sizes of blocks are rounded up to a multiple of it
constexpr std::uint64_t kSmallRequest = kMiB;          // requests up to here come from the small pool
constexpr std::uint64_t kSmallSegment = 2 * kMiB;      // size of all its segments; unit of those made for one request
constexpr std::uint64_t kLeastOwnSegment = 10 * kMiB;  // from here on a request gets a segment of its own size
constexpr std::uint64_t kDefaultLargeSegment = 20 * kMiB;
constexpr std::uint64_t kLeastSplitSize = 20 * kMiB;  // torch takes no max_split_size_mb that is not above this
constexpr std::uint64_t kDefaultNonSplitRounding = 20 * kMiB;

struct AllocatorSettings {
  static constexpr std::size_t kIntervals = 16;  // of roundup_power2_divisions: 1 MiB to 64 GiB, by powers of two
  std::array<std::uint64_t, kIntervals> roundup_power2_divisions{};
  std::uint64_t max_split_size = UINT64_MAX;
  std::uint64_t large_segment_size = kDefaultLargeSegment;
  // How much larger than asked for a block that is not split may be.
  std::uint64_t max_non_split_rounding_size = kDefaultNonSplitRounding;
  double garbage_collection_threshold = 0;  // share of the memory fraction; 0: never
  bool expandable_segments = false;

  // Takes over the settings in the JSON text of a `config` event; those it does not have stay.
  void read(const std::string& json);

  // Size of the block that a request of `bytes` needs.
  std::uint64_t rounded(std::uint64_t bytes) const;
  // What the driver is asked for when no free block serves a request of `rounded` bytes.
  std::uint64_t segment_size(std::uint64_t rounded) const {
    if (rounded <= kSmallRequest) return kSmallSegment;
    if (rounded < kLeastOwnSegment) return large_segment_size;
    return (rounded + kSmallSegment - 1) / kSmallSegment * kSmallSegment;
  }
  // Whether what is left of a block of `block` bytes, when `wanted` (rounded) are taken, becomes a block of its own.
  bool splits(std::uint64_t block, std::uint64_t wanted, bool is_large, bool is_expandable) const {
    const std::uint64_t rest = block - wanted;
    if (!is_large || is_expandable) return rest >= kMinimumBlock;
    return wanted < max_split_size && rest > kSmallRequest;
  }
};

}  // namespace alloctrace
