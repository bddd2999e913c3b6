// Tracing of torch's CUDA allocator: an allocator in front of the one that is current, which forwards everything.
#pragma once

#include <string>

namespace alloctrace::torch_side {

// False in a build for a torch without CUDA, where the functions below do nothing.
bool cuda_allocator_is_built();

// Puts ours in front of the current CUDA allocator and starts to record it. This does not initialise CUDA: if it is not
// initialised yet, recording begins when torch initialises it; if it is, the allocator's present segments and blocks
// are written first. Call when a session is on.
void install_cuda_allocator(bool torch_is_initialised);

// Stops recording, with the allocator's last state as a checkpoint, and puts the former allocator back if ours is
// still the current one. Tensors made under tracing are freed safely at any later time.
void remove_cuda_allocator();

// Writes the allocator's segments and blocks into the trace as a checkpoint. False when there is nothing to write: CUDA
// is not initialised, or the allocator does not report them.
bool snapshot_cuda_allocator();

// The name of the allocator that the program has put instead of ours, whose allocations never reach ours; empty when
// ours is current or none was installed.
std::string cuda_allocator_instead_of_ours();

}  // namespace alloctrace::torch_side
