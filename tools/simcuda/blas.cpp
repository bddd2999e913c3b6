// cuBLAS: handles and their settings. The functions that compute are in blas_compute.cpp.
#include "blas.h"

#include <memory>

namespace simcuda::blas {
namespace {

template <class Value>
int report(const Handle* handle, Value Handle::* setting, Value* out) {
  if (handle == nullptr) return kNotInitialized;
  if (out == nullptr) return kInvalidValue;
  *out = handle->*setting;
  return kSuccess;
}

template <class Value>
int set(Handle* handle, Value Handle::* setting, Value value) {
  if (handle == nullptr) return kNotInitialized;
  handle->*setting = value;
  return kSuccess;
}

// Vectors and matrices between host and device: one copy for each column.
int copy_matrix(int64_t rows, int64_t columns, int64_t element, const void* from, int64_t from_stride, void* to,
                int64_t to_stride, cudaStream_t stream, bool wait) {
  if (rows < 0 || columns < 0 || element <= 0 || from_stride <= 0 || to_stride <= 0) return kInvalidValue;
  for (int64_t column = 0; column < columns; ++column) {
    const void* source = static_cast<const char*>(from) + column * from_stride * element;
    void* target = static_cast<char*>(to) + column * to_stride * element;
    const auto bytes = static_cast<size_t>(rows * element);
    const cudaError_t error = wait ? cudaMemcpy(target, source, bytes, cudaMemcpyDefault)
                                   : cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream);
    if (error != cudaSuccess) return kMappingError;
  }
  return kSuccess;
}

// A vector with a stride is a matrix of one row.
int copy_vector(int64_t count, int64_t element, const void* from, int64_t from_stride, void* to, int64_t to_stride,
                cudaStream_t stream, bool wait) {
  if (from_stride == 1 && to_stride == 1) return copy_matrix(count, 1, element, from, 1, to, 1, stream, wait);
  return copy_matrix(1, count, element, from, from_stride, to, to_stride, stream, wait);
}

}  // namespace

int compute(const Handle* handle) {
  if (handle == nullptr) return kNotInitialized;
  return submit_work(handle->stream) == cudaSuccess ? kSuccess : kExecutionFailed;
}

}  // namespace simcuda::blas

using namespace simcuda::blas;

SIMCUDA_EXPORT int cublasCreate_v2(Handle** handle) {
  if (handle == nullptr) return kInvalidValue;
  // The real library loads kernels, and so needs a context.
  if (cudaFree(nullptr) != cudaSuccess) return kNotInitialized;
  *handle = std::make_unique<Handle>().release();
  return kSuccess;
}
SIMCUDA_EXPORT int cublasDestroy_v2(Handle* handle) {
  const std::unique_ptr<Handle> owned(handle);
  return owned == nullptr ? kNotInitialized : kSuccess;
}

SIMCUDA_EXPORT int cublasSetStream_v2(Handle* handle, cudaStream_t stream) {
  return set(handle, &Handle::stream, stream);
}
SIMCUDA_EXPORT int cublasGetStream_v2(const Handle* handle, cudaStream_t* out) {
  return report(handle, &Handle::stream, out);
}
// Nothing is computed, so no workspace is used.
SIMCUDA_EXPORT int cublasSetWorkspace_v2(Handle* handle, void*, size_t) {
  return handle == nullptr ? kNotInitialized : kSuccess;
}

#define SIMCUDA_SETTING(setter, getter, setting)                                                        \
  SIMCUDA_EXPORT int setter(Handle* handle, int value) { return set(handle, &Handle::setting, value); } \
  SIMCUDA_EXPORT int getter(const Handle* handle, int* out) { return report(handle, &Handle::setting, out); }
SIMCUDA_SETTING(cublasSetMathMode, cublasGetMathMode, math_mode)
SIMCUDA_SETTING(cublasSetPointerMode_v2, cublasGetPointerMode_v2, pointer_mode)
SIMCUDA_SETTING(cublasSetAtomicsMode, cublasGetAtomicsMode, atomics_mode)
SIMCUDA_SETTING(cublasSetSmCountTarget, cublasGetSmCountTarget, sm_count_target)
SIMCUDA_SETTING(cublasSetEmulationStrategy, cublasGetEmulationStrategy, emulation_strategy)

SIMCUDA_EXPORT int cublasGetVersion_v2(const Handle*, int* out) {
  if (out == nullptr) return kInvalidValue;
  *out = 130100;  // the cuBLAS that comes with torch for CUDA 13
  return kSuccess;
}

// --- Vectors and matrices between host and device. The 64-bit versions take wider arguments.
#define SIMCUDA_COPIES(suffix, Count)                                                                                  \
  SIMCUDA_EXPORT int cublasSetVector##suffix(Count count, Count element, const void* from, Count from_stride,          \
                                             void* to, Count to_stride) {                                              \
    return copy_vector(count, element, from, from_stride, to, to_stride, nullptr, true);                               \
  }                                                                                                                    \
  SIMCUDA_EXPORT int cublasGetVector##suffix(Count count, Count element, const void* from, Count from_stride,          \
                                             void* to, Count to_stride) {                                              \
    return copy_vector(count, element, from, from_stride, to, to_stride, nullptr, true);                               \
  }                                                                                                                    \
  SIMCUDA_EXPORT int cublasSetVectorAsync##suffix(Count count, Count element, const void* from, Count from_stride,     \
                                                  void* to, Count to_stride, cudaStream_t stream) {                    \
    return copy_vector(count, element, from, from_stride, to, to_stride, stream, false);                               \
  }                                                                                                                    \
  SIMCUDA_EXPORT int cublasGetVectorAsync##suffix(Count count, Count element, const void* from, Count from_stride,     \
                                                  void* to, Count to_stride, cudaStream_t stream) {                    \
    return copy_vector(count, element, from, from_stride, to, to_stride, stream, false);                               \
  }                                                                                                                    \
  SIMCUDA_EXPORT int cublasSetMatrix##suffix(Count rows, Count columns, Count element, const void* from,               \
                                             Count from_stride, void* to, Count to_stride) {                           \
    return copy_matrix(rows, columns, element, from, from_stride, to, to_stride, nullptr, true);                       \
  }                                                                                                                    \
  SIMCUDA_EXPORT int cublasGetMatrix##suffix(Count rows, Count columns, Count element, const void* from,               \
                                             Count from_stride, void* to, Count to_stride) {                           \
    return copy_matrix(rows, columns, element, from, from_stride, to, to_stride, nullptr, true);                       \
  }                                                                                                                    \
  SIMCUDA_EXPORT int cublasSetMatrixAsync##suffix(Count rows, Count columns, Count element, const void* from,          \
                                                  Count from_stride, void* to, Count to_stride, cudaStream_t stream) { \
    return copy_matrix(rows, columns, element, from, from_stride, to, to_stride, stream, false);                       \
  }                                                                                                                    \
  SIMCUDA_EXPORT int cublasGetMatrixAsync##suffix(Count rows, Count columns, Count element, const void* from,          \
                                                  Count from_stride, void* to, Count to_stride, cudaStream_t stream) { \
    return copy_matrix(rows, columns, element, from, from_stride, to, to_stride, stream, false);                       \
  }
SIMCUDA_COPIES(, int)
SIMCUDA_COPIES(_64, int64_t)
