// Stubs compiled instead of csrc/torch/cuda for a torch built without CUDA.
#include "../cuda/allocator.h"

namespace alloctrace::torch_side {

bool cuda_allocator_is_built() { return false; }
void install_cuda_allocator(bool) {}
void remove_cuda_allocator() {}
std::vector<CudaTotals> cuda_totals() noexcept { return {}; }
bool snapshot_cuda_allocator() { return false; }
std::string cuda_allocator_instead_of_ours() { return ""; }

}  // namespace alloctrace::torch_side
