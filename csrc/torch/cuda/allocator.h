// Tracing of torch's CUDA allocator: an allocator in front of the one that is current, which forwards everything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// What torch's allocator counts itself, in bytes.
struct CudaTotals {
  std::int32_t device = 0;
  std::int64_t requested = 0, allocated = 0, active = 0, reserved = 0;
};
// Of each device that was allocated on while something was recorded. Takes each device's lock, as
// torch.cuda.memory_allocated() does: to be called without the GIL. Leaves out what does not count.
std::vector<CudaTotals> cuda_totals() noexcept;

// The name of the allocator that the program has put instead of ours, whose allocations never reach ours; empty when
// ours is current or none was installed.
std::string cuda_allocator_instead_of_ours();

}  // namespace alloctrace::torch_side
