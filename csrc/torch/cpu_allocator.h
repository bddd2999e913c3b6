// Tracing of torch's CPU allocator: an allocator in front of the one that is current.
#pragma once

namespace alloctrace::torch_side {

// Puts ours in front of the current CPU allocator. Allocations that go around it (numpy, memory maps, shared memory,
// resize_ of older tensors) are not seen.
void install_cpu_allocator();

// Puts the former allocator back, if ours is still the current one; if another was put in front of ours, ours stays
// behind it and only forwards. Tensors made under tracing are freed safely at any later time.
void remove_cpu_allocator();

}  // namespace alloctrace::torch_side
