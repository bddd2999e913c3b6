// A pair of functions for torch.cuda.memory.CUDAPluggableAllocator: cudaMalloc and cudaFree, recorded.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace alloctrace::torch_side {

// Whether the program allocates with the pair.
bool pair_is_used() noexcept;

}  // namespace alloctrace::torch_side

extern "C" {
// Returns nullptr when there is no memory, as torch expects of such a function.
__attribute__((visibility("default"))) void* alloctrace_malloc(std::size_t size, int device, cudaStream_t stream);
__attribute__((visibility("default"))) void alloctrace_free(void* address, std::size_t size, int device,
                                                            cudaStream_t stream);
}
