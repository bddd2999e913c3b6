// Tracing of pinned host memory: an allocator in front of torch's caching host allocator for CUDA. In the trace it is a
// device of its own, "pinned".
#pragma once

namespace alloctrace::torch_side {

// Changes nothing but who is asked first; CUDA is not initialised by it.
void install_pinned_allocator();
// Puts the former allocator back, if ours is still the current one. What was allocated meanwhile is freed safely at any
// time.
void remove_pinned_allocator();

}  // namespace alloctrace::torch_side
