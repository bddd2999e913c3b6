// cuBLAS: handles and their settings are kept, and no product is computed: a call puts work on the handle's stream, as
// cuBLAS's launches do. Every function that computes has the handle as its first argument and looks at nothing else, so
// one shape serves them all, and this file does not include cuBLAS's header, which declares the true ones.
#include <memory>

#include "simcuda.h"

namespace {

constexpr int kSuccess = 0, kNotInitialized = 1, kInvalidValue = 7, kExecutionFailed = 13;
constexpr int kVersion = 130100;

struct Handle {
  cudaStream_t stream = nullptr;
  int math_mode = 0, pointer_mode = 0, atomics_mode = 0, sm_count_target = 0;
};

int compute(const Handle* handle) {
  if (!handle) return kNotInitialized;
  return simcuda::submit_work(handle->stream) == cudaSuccess ? kSuccess : kExecutionFailed;
}

template <typename Value>
int tell(const Value& value, Value* out) {
  if (!out) return kInvalidValue;
  *out = value;
  return kSuccess;
}

}  // namespace

SIMCUDA_EXPORT int cublasCreate_v2(Handle** handle) {
  if (!handle) return kInvalidValue;
  // The real one loads kernels, and so needs a context.
  if (cudaFree(nullptr) != cudaSuccess) return kNotInitialized;
  *handle = std::make_unique<Handle>().release();
  return kSuccess;
}
SIMCUDA_EXPORT int cublasDestroy_v2(Handle* handle) {
  const std::unique_ptr<Handle> owned(handle);
  return owned ? kSuccess : kNotInitialized;
}
SIMCUDA_EXPORT int cublasSetStream_v2(Handle* handle, cudaStream_t stream) { return handle->stream = stream, kSuccess; }
SIMCUDA_EXPORT int cublasGetStream_v2(const Handle* handle, cudaStream_t* out) { return tell(handle->stream, out); }
SIMCUDA_EXPORT int cublasSetWorkspace_v2(Handle*, void*, size_t) { return kSuccess; }
SIMCUDA_EXPORT int cublasSetMathMode(Handle* handle, int mode) { return handle->math_mode = mode, kSuccess; }
SIMCUDA_EXPORT int cublasGetMathMode(const Handle* handle, int* out) { return tell(handle->math_mode, out); }
SIMCUDA_EXPORT int cublasSetPointerMode_v2(Handle* handle, int mode) { return handle->pointer_mode = mode, kSuccess; }
SIMCUDA_EXPORT int cublasGetPointerMode_v2(const Handle* handle, int* out) { return tell(handle->pointer_mode, out); }
SIMCUDA_EXPORT int cublasSetAtomicsMode(Handle* handle, int mode) { return handle->atomics_mode = mode, kSuccess; }
SIMCUDA_EXPORT int cublasGetAtomicsMode(const Handle* handle, int* out) { return tell(handle->atomics_mode, out); }
SIMCUDA_EXPORT int cublasSetSmCountTarget(Handle* handle, int count) {
  return handle->sm_count_target = count, kSuccess;
}
SIMCUDA_EXPORT int cublasGetSmCountTarget(const Handle* handle, int* out) { return tell(handle->sm_count_target, out); }
SIMCUDA_EXPORT int cublasGetVersion_v2(const Handle*, int* out) { return tell(kVersion, out); }

#define SIMCUDA_COMPUTES(name) \
  SIMCUDA_EXPORT int cublas##name(const Handle* handle) { return compute(handle); }
#define SIMCUDA_COMPUTES_IN_ALL_TYPES(name) \
  SIMCUDA_COMPUTES(S##name)                 \
  SIMCUDA_COMPUTES(D##name)                 \
  SIMCUDA_COMPUTES(C##name)                 \
  SIMCUDA_COMPUTES(Z##name)

SIMCUDA_COMPUTES_IN_ALL_TYPES(gemm_v2)
SIMCUDA_COMPUTES_IN_ALL_TYPES(gemv_v2)
SIMCUDA_COMPUTES_IN_ALL_TYPES(gemmBatched)
SIMCUDA_COMPUTES_IN_ALL_TYPES(gemmStridedBatched)
SIMCUDA_COMPUTES_IN_ALL_TYPES(trsm_v2)
SIMCUDA_COMPUTES_IN_ALL_TYPES(trsmBatched)
SIMCUDA_COMPUTES_IN_ALL_TYPES(getrfBatched)
SIMCUDA_COMPUTES_IN_ALL_TYPES(geqrfBatched)
SIMCUDA_COMPUTES(SgemmEx)
SIMCUDA_COMPUTES(GemmEx)
SIMCUDA_COMPUTES(GemmBatchedEx)
SIMCUDA_COMPUTES(GemmStridedBatchedEx)
SIMCUDA_COMPUTES(DotEx)
SIMCUDA_COMPUTES(Sdot_v2)
SIMCUDA_COMPUTES(Ddot_v2)
SIMCUDA_COMPUTES(Cdotc_v2)
SIMCUDA_COMPUTES(Cdotu_v2)
SIMCUDA_COMPUTES(Zdotc_v2)
SIMCUDA_COMPUTES(Zdotu_v2)
