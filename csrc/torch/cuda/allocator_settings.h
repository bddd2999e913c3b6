// The settings of torch's CUDA allocator that decide the layout of its memory. Programs change them while they run, and
// torch reports no event then: they are compared before the events that depend on them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace alloctrace::torch_side {

// What decides how a small request is cut, which most are: torch asks for the other settings in its pools of large
// blocks only.
constexpr std::size_t kSmallRequest = std::size_t{1} << 20;
struct SmallRequests {
  std::uint64_t session = 0;  // in which it was seen
  const std::vector<std::size_t>* divisions = nullptr;
  std::size_t first_division = 0;
};
// One for each device: each is read and written under that device's lock only.
extern std::array<SmallRequests, 128> small_requests;

bool compare_cuda_settings(int device, std::uint64_t session, std::size_t size, bool makes_segment);

// True at the first call for this device in this session, and when settings that decide about a block or segment of
// `size` bytes have changed since the last call. Called under the device's lock, for each event that makes a segment,
// and, with makes_segment false, for each that takes a block.
inline bool cuda_settings_changed(int device, std::uint64_t session, std::size_t size, bool makes_segment) {
  const SmallRequests& last = small_requests[static_cast<std::size_t>(device)];
  if (!makes_segment && size <= kSmallRequest && last.session == session && last.divisions != nullptr &&
      !last.divisions->empty() && last.divisions->front() == last.first_division) [[likely]] {
    return false;
  }
  return compare_cuda_settings(device, session, size, makes_segment);
}

// The settings that the last call for this device saw, as JSON: sizes in bytes, the divisions by interval of size from
// 1 MiB to 64 GiB.
std::string cuda_settings_text(int device);

}  // namespace alloctrace::torch_side
