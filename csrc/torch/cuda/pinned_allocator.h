// Tracing of pinned host memory, device "pinned": an allocator in front of torch's caching host allocator for CUDA. Of
// the pool's own statistics only the bytes that it holds are sampled (allocated_bytes in torch 2.9 to 2.15). The bytes
// in use are those of the events: up to torch 2.13, frees do not lower active_bytes.
#pragma once

namespace alloctrace::torch_side {

// Put our allocator in front without initialising CUDA.
void install_pinned_allocator();
// Restore the former allocator if ours is current. Blocks of ours can still be freed at any time.
void remove_pinned_allocator();

}  // namespace alloctrace::torch_side
