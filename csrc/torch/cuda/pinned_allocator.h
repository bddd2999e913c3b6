// Tracing of pinned host memory, device "pinned": an allocator in front of torch's caching host allocator for CUDA.
#pragma once

namespace alloctrace::torch_side {

// Put our allocator in front without initialising CUDA.
void install_pinned_allocator();
// Restore the former allocator if ours is current. Blocks of ours can still be freed at any time.
void remove_pinned_allocator();

}  // namespace alloctrace::torch_side
