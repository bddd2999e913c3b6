// Settings of torch's CUDA allocator that decide its memory layout. torch reports no changes, so they are compared
// before each event that depends on them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace alloctrace::torch_side {

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
