// What the trace says about each CUDA device: name, capacity, identity.
#pragma once

namespace alloctrace::torch_side {

// Call once torch has initialised CUDA. Changes neither the current device nor the last CUDA error.
void record_devices() noexcept;

}  // namespace alloctrace::torch_side
