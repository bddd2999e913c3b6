// The settings of torch's CUDA allocator that decide the layout of its memory. Programs change them while they run, and
// torch reports no event then: they are compared before the events that depend on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace alloctrace::torch_side {

// True at the first call for this device in this session, and when settings that decide about a block or segment of
// `size` bytes have changed since the last call. Called under the device's lock, for each event that makes a segment,
// and, with makes_segment false, for each that takes a block.
bool cuda_settings_changed(int device, std::uint64_t session, std::size_t size, bool makes_segment);

// The settings that the last call for this device saw, as JSON: sizes in bytes, the divisions by interval of size from
// 1 MiB to 64 GiB.
std::string cuda_settings_text(int device);

}  // namespace alloctrace::torch_side
