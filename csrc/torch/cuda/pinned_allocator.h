// Tracing of pinned host memory, device "pinned": an allocator in front of torch's caching host allocator for CUDA. Of
// the pool's own statistics only the bytes that it holds are sampled. The bytes in use are those of the events: torch's
// active_bytes are wrong in some releases (2.11 does not lower them when a block is freed).
#pragma once

namespace alloctrace::torch_side {

// Put our allocator in front without initialising CUDA.
void install_pinned_allocator();
// Restore the former allocator if ours is current. Blocks of ours can still be freed at any time.
void remove_pinned_allocator();

}  // namespace alloctrace::torch_side
