// Tracing of torch's CPU allocator: an allocator in front of the current one.
#pragma once

namespace alloctrace::torch_side {

// Put our allocator in front. numpy, memory maps, shared memory and resize_ of older tensors bypass it: not recorded.
void install_cpu_allocator();
// Restore the former allocator if ours is current; else ours only forwards. Tensors can be freed at any later time.
void remove_cpu_allocator();

}  // namespace alloctrace::torch_side
