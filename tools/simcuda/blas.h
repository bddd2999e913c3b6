// Shared by the parts of cuBLAS. cuBLAS's header is not included: every compute function here reads only the handle,
// its first argument, so one signature serves hundreds of functions. The calling conventions of x86-64 and ARM allow a
// function to ignore its arguments.
#pragma once

#include "simcuda.h"

namespace simcuda::blas {

constexpr int kSuccess = 0;
constexpr int kNotInitialized = 1;
constexpr int kInvalidValue = 7;
constexpr int kMappingError = 11;
constexpr int kExecutionFailed = 13;

struct Handle {
  cudaStream_t stream = nullptr;
  int math_mode = 0;
  int pointer_mode = 0;  // 0: results and factors lie in host memory, 1: on the device
  int atomics_mode = 0;
  int sm_count_target = 0;
  int emulation_strategy = 0;
};

// Puts work on the handle's stream.
int compute(const Handle* handle);

}  // namespace simcuda::blas
