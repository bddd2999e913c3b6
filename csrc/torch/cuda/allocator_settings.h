// Settings of torch's CUDA allocator that decide its memory layout. torch reports no changes, so they are compared
// before each event that depends on them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace alloctrace::torch_side {

// torch's setting roundup_power2_divisions: the number of parts into which each interval between two powers of two is
// divided to round a request up. The first interval begins at 1 MiB, the last at 64 GiB.
using RoundingDivisions = std::array<std::size_t, 16>;

// Return whether a request of `size` bytes is rounded as when `last` was read. Allocates nothing: the hook of every
// allocation calls this. torch changes its settings, `Config`, in place and reads them without a lock, as this does.
template <typename Config>
bool same_rounding_divisions(const RoundingDivisions& last, std::size_t size) {
  const auto interval = std::clamp<std::size_t>(std::bit_width(size), 21, 20 + last.size()) - 21;
  if constexpr (std::is_reference_v<decltype(Config::roundup_power2_divisions())>) {
    const std::vector<std::size_t>& current = Config::roundup_power2_divisions();
    return interval >= current.size() || current[interval] == last[interval];
  } else {  // torch 2.9 returns a copy of the vector, but also has an overload for one size
    return Config::roundup_power2_divisions(size) == last[interval];
  }
}

// Return torch's own vector, which is never destroyed, or nullptr if torch returns a copy.
template <typename Config>
const std::vector<std::size_t>* current_rounding_divisions() {
  if constexpr (std::is_reference_v<decltype(Config::roundup_power2_divisions())>) {
    return &Config::roundup_power2_divisions();
  } else {
    return nullptr;
  }
}

template <typename Config>
RoundingDivisions read_rounding_divisions() {
  RoundingDivisions divisions{};
  const std::vector<std::size_t>& current = Config::roundup_power2_divisions();
  std::copy_n(current.begin(), std::min(current.size(), divisions.size()), divisions.begin());
  return divisions;
}

// Maximum bytes of a small request. Only the rounding divisions decide how torch cuts a block for one.
constexpr std::size_t kMaxSmallRequest = std::size_t{1} << 20;
struct SmallRequests {
  std::uint64_t session = 0;  // in which the rest was read
  const std::vector<std::size_t>* divisions = nullptr;
  std::size_t first_division = 0;
};
// One per device, accessed under that device's lock only.
extern std::array<SmallRequests, 128> small_requests;
bool compare_all_cuda_settings(int device, std::uint64_t session, std::size_t size, bool creates_segment);

// Return true at a session's first call for this device, and if settings for a block or segment of `size` bytes have
// changed since the last call. Call under the device's lock at each allocation and each new segment.
inline bool cuda_settings_changed(int device, std::uint64_t session, std::size_t size, bool creates_segment) {
  const SmallRequests& last = small_requests[static_cast<std::size_t>(device)];
  if (!creates_segment && size <= kMaxSmallRequest && last.session == session && last.divisions != nullptr &&
      !last.divisions->empty() && last.divisions->front() == last.first_division) [[likely]] {
    return false;
  }
  return compare_all_cuda_settings(device, session, size, creates_segment);
}

// Return the settings read at the last change for this device, as JSON: sizes in bytes, divisions by interval.
std::string cuda_settings_text(int device);

}  // namespace alloctrace::torch_side
