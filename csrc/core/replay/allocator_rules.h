// Rounding and splitting of blocks in torch's native CUDA allocator (c10/cuda/CUDACachingAllocator.cpp: round_size,
// should_split). The choice of a free block and new segments are recorded as events; what_if/ models both.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace alloctrace {

// Bytes. Python reads these numbers from _replay.
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kMinimumBlock = 512;         // unit of block sizes
constexpr std::uint64_t kSmallRequest = kMiB;        // maximum request for the small pool
constexpr std::uint64_t kSmallSegment = 2 * kMiB;    // segment size in the small pool
constexpr std::uint64_t kSegmentUnit = 2 * kMiB;     // unit of the sizes of other segments
constexpr std::uint64_t kMinOwnSegment = 10 * kMiB;  // minimum request that gets a segment of its own size
constexpr std::uint64_t kDefaultLargeSegment = 20 * kMiB;
constexpr std::uint64_t kMinSplitSize = 20 * kMiB;  // max_split_size_mb must be above this
constexpr std::uint64_t kDefaultNonSplitRounding = 20 * kMiB;

// A new setting is also read by the hook (torch/cuda/allocator_settings.h), by conversion (converting/trace_header.py)
// and from text (analysis/what_if/settings.py), and is kept by DeviceMemory::save().
struct AllocatorSettings {
  static constexpr std::size_t kIntervals = 16;  // of roundup_power2_divisions: powers of two from 1 MiB to 64 GiB
  std::array<std::uint64_t, kIntervals> roundup_power2_divisions{};
  std::uint64_t max_split_size = UINT64_MAX;
  std::uint64_t large_segment_size = kDefaultLargeSegment;
  // Maximum bytes by which a block that is not split may exceed a request.
  std::uint64_t max_non_split_rounding_size = kDefaultNonSplitRounding;
  double garbage_collection_threshold = 0;  // share of the memory fraction; 0: disabled
  bool expandable_segments = false;

  // Update the settings from the JSON text of a `config` event. Absent settings keep their values.
  void read(const std::string& json);
  // Limit the settings to values that the allocator can have: a corrupt trace may contain 0.
  void clamp() { large_segment_size = std::max(large_segment_size, kSegmentUnit); }

  // Return the block size for a request of `bytes`.
  std::uint64_t rounded(std::uint64_t bytes) const;
  // Return the bytes requested from the driver if no free block fits a request of `rounded` bytes.
  std::uint64_t segment_size(std::uint64_t rounded) const {
    if (rounded <= kSmallRequest) return kSmallSegment;
    if (rounded < kMinOwnSegment) return large_segment_size;
    return (rounded + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit;
  }
  // Return the bytes that an expandable segment is extended by.
  std::uint64_t mapping_unit(bool is_large) const { return is_large ? large_segment_size : kSmallSegment; }
  // Return whether a block of `block` bytes is split to allocate `wanted` (rounded) bytes.
  bool splits(std::uint64_t block, std::uint64_t wanted, bool is_large, bool is_expandable) const {
    const std::uint64_t rest = block - wanted;
    if (!is_large || is_expandable) return rest >= kMinimumBlock;
    return wanted < max_split_size && rest > kSmallRequest;
  }
};

}  // namespace alloctrace
