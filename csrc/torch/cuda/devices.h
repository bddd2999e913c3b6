// Records of CUDA devices: name, capacity, identity, and the bytes that the process may reserve.
#pragma once

#include "torch_release.h"

namespace alloctrace::torch_side {

// Record all devices. Call once torch has initialised CUDA. Changes neither the current device nor the last CUDA error.
void record_devices() noexcept;
// Record fractions below 1, set by the program or per_process_memory_fraction. Call once the upstream is initialised.
void record_memory_fractions(native::CUDAAllocator& upstream) noexcept;
// Record the fraction that was just set for one device.
void record_memory_fraction(native::CUDAAllocator& upstream, c10::DeviceIndex device) noexcept;

}  // namespace alloctrace::torch_side
