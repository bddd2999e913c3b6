// Tracing of torch's CUDA allocator: an allocator in front of the one that is current, which forwards everything.
#pragma once

#include <string>

namespace alloctrace::torch_side {

// False in a build for a torch without CUDA: all that follows does nothing there.
bool cuda_allocator_is_built();

// Puts ours in front of the CUDA allocator that is current and starts to record it. CUDA is not initialised by this:
// where it is not yet, recording begins with torch's own initialisation. Where it is, the allocator's present segments
// and blocks are written first. Call when a session is on.
void install_cuda_allocator(bool torch_is_initialised);

// Stops recording, with the allocator's last state as a check point, and puts the former allocator back if ours is
// still the current one. Tensors made under tracing are freed safely at any later time.
void remove_cuda_allocator();

// Writes the allocator's segments and blocks into the trace as a check point. False where there are none to write: CUDA
// not initialised, or an allocator that does not tell them.
bool snapshot_cuda_allocator();

// Empty when ours is the current allocator (or none was installed); else the name of the one that took its place:
// what is asked of that one never reaches ours.
std::string cuda_allocator_in_our_place();

}  // namespace alloctrace::torch_side
