// Launching kernels, for the runtime's calls and the driver's.
#pragma once

#include "simcuda.h"

namespace simcuda {

// Takes the lock.
cudaError_t launch_kernel(const void* function, const dim3& grid, const dim3& block, size_t shared,
                          cudaStream_t stream);

}  // namespace simcuda
