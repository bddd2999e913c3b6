// The settings of torch's CUDA allocator that decide the layout of its memory. Programs change them while they run, and
// no event of torch's tells: they are compared before the events that depend on them.
#pragma once

#include <cstdint>
#include <string>

namespace alloctrace::torch_side {

// True when the settings are others than at the last call for this device in this session, and at the first. Called
// under the device's lock, for each event that makes a segment, and, with makes_segment false, for each that takes a
// block.
bool cuda_settings_changed(int device, std::uint64_t session, bool makes_segment);

// Those that the last call for this device saw, as JSON: sizes in bytes, the divisions by interval of size from 1 MiB
// to 64 GiB.
std::string cuda_settings_text(int device);

}  // namespace alloctrace::torch_side
