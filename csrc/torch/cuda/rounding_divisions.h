// torch's setting roundup_power2_divisions: the number of parts into which each interval between two powers of two is
// divided to round a request up. The first interval begins at 1 MiB, the last at 64 GiB.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace alloctrace::torch_side {

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

}  // namespace alloctrace::torch_side
