// What the trace says about each CUDA device: name, capacity, identity, and how much of it the process may reserve.
#pragma once

#include "torch_release.h"

namespace alloctrace::torch_side {

// Call once torch has initialised CUDA. Changes neither the current device nor the last CUDA error.
void record_devices() noexcept;

// Of all devices, where the process may not reserve all of it (per_process_memory_fraction, or what the program set
// before the recording). Call once the upstream is initialised.
void record_memory_fractions(native::CUDAAllocator& upstream) noexcept;
// Of one device, where it was set just now.
void record_memory_fraction(native::CUDAAllocator& upstream, c10::DeviceIndex device) noexcept;

}  // namespace alloctrace::torch_side
