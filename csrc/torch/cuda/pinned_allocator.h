// Tracing of pinned host memory: an allocator in front of torch's caching host allocator for CUDA. In the trace it is
// the device "pinned".
#pragma once

namespace alloctrace::torch_side {

// Does not initialise CUDA.
void install_pinned_allocator();
// Puts the former allocator back, if ours is still the current one. What was allocated through ours is freed safely at
// any later time.
void remove_pinned_allocator();

}  // namespace alloctrace::torch_side
