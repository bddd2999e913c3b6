// Tracing of torch's CUDA allocator: a forwarding allocator in front of the current one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace alloctrace::torch_side {

// Return false in a build for a torch without CUDA, where the functions below do nothing.
bool cuda_allocator_is_built();

// Put our allocator in front of the current CUDA allocator and start recording, within a session. Does not initialise
// CUDA: recording begins when torch does. If torch already has, the present segments and blocks are written first.
void install_cuda_allocator(bool torch_is_initialised);
// Write the final state, stop recording, restore the former allocator if ours is current. Tensors can be freed later.
void remove_cuda_allocator();
// Write segments and blocks as a checkpoint. Return false if CUDA is not initialised or the allocator cannot list them.
bool snapshot_cuda_allocator();

// Byte counts of torch's allocator.
struct CudaTotals {
  std::int32_t device = 0;
  std::int64_t requested = 0, allocated = 0, active = 0, reserved = 0;
};
// Return the counts of each device allocated on during a recording, where the allocator counts. Call without the GIL:
// takes each device's lock, as torch.cuda.memory_allocated() does.
std::vector<CudaTotals> cuda_totals() noexcept;

// Return the name of the allocator that the program installed instead of ours, or "". Ours gets no calls then.
std::string cuda_allocator_instead_of_ours();

}  // namespace alloctrace::torch_side
