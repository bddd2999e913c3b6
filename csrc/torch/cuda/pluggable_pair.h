// cudaMalloc and cudaFree with recording: a pair of functions for torch.cuda.memory.CUDAPluggableAllocator.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace alloctrace::torch_side {

// Return whether the program has allocated with the pair.
bool pair_is_used() noexcept;

}  // namespace alloctrace::torch_side

extern "C" {
// Return nullptr when out of memory, as torch requires.
__attribute__((visibility("default"))) void* alloctrace_malloc(std::size_t size, int device, cudaStream_t stream);
__attribute__((visibility("default"))) void alloctrace_free(void* address, std::size_t size, int device,
                                                            cudaStream_t stream);
}
