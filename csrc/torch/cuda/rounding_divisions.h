// torch's setting roundup_power2_divisions: into how many parts each interval of sizes, from one power of two to the
// next, is divided when a request is rounded up. The first interval begins at 1 MiB, the last at 64 GiB.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace alloctrace::torch_side {

using RoundingDivisions = std::array<std::size_t, 16>;

// Whether a request of `size` bytes is rounded as it was when `seen` was read. Allocates nothing, for the hook of every
// allocation asks this. `Config` is torch's class of settings: it changes them in place and reads them without a lock,
// as we do.
template <typename Config>
bool same_rounding_divisions(const RoundingDivisions& seen, std::size_t size) {
  const auto interval = std::clamp<std::size_t>(std::bit_width(size), 21, 20 + seen.size()) - 21;
  if constexpr (std::is_reference_v<decltype(Config::roundup_power2_divisions())>) {
    const std::vector<std::size_t>& now = Config::roundup_power2_divisions();
    return interval >= now.size() || now[interval] == seen[interval];
  } else {  // torch 2.9 returns a copy of them all, but also a single one
    return Config::roundup_power2_divisions(size) == seen[interval];
  }
}

// Where torch keeps them, as long as the process lives; nullptr: it does not let us know.
template <typename Config>
const std::vector<std::size_t>* divisions_now() {
  if constexpr (std::is_reference_v<decltype(Config::roundup_power2_divisions())>) {
    return &Config::roundup_power2_divisions();
  } else {
    return nullptr;
  }
}

template <typename Config>
RoundingDivisions read_rounding_divisions() {
  RoundingDivisions divisions{};
  const std::vector<std::size_t>& now = Config::roundup_power2_divisions();
  std::copy_n(now.begin(), std::min(now.size(), divisions.size()), divisions.begin());
  return divisions;
}

}  // namespace alloctrace::torch_side
