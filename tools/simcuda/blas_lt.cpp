// cuBLASLt: one algorithm that fits every product, needs no workspace, and computes nothing. cublasLt.h is not
// included: it needs headers of half-precision arithmetic that no package next to torch provides.
#include "simcuda.h"

namespace {

constexpr int kSuccess = 0, kInvalidValue = 7, kExecutionFailed = 13;

struct HeuristicResult {  // cublasLtMatmulHeuristicResult_t
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

// Opaque handles and descriptors: only the address matters.
int nothing;
int make(void** out) {
  if (!out) return kInvalidValue;
  *out = &nothing;
  return kSuccess;
}

}  // namespace

SIMCUDA_EXPORT size_t cublasLtGetVersion() { return 130100; }
SIMCUDA_EXPORT int cublasLtCreate(void** handle) { return make(handle); }
SIMCUDA_EXPORT int cublasLtDestroy(void*) { return kSuccess; }

SIMCUDA_EXPORT int cublasLtMatmulDescCreate(void** out, int, int) { return make(out); }
SIMCUDA_EXPORT int cublasLtMatmulDescDestroy(void*) { return kSuccess; }
SIMCUDA_EXPORT int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t) { return kSuccess; }

SIMCUDA_EXPORT int cublasLtMatrixLayoutCreate(void** out, int, uint64_t, uint64_t, int64_t) { return make(out); }
SIMCUDA_EXPORT int cublasLtMatrixLayoutDestroy(void*) { return kSuccess; }
SIMCUDA_EXPORT int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t) { return kSuccess; }

SIMCUDA_EXPORT int cublasLtMatmulPreferenceCreate(void** out) { return make(out); }
SIMCUDA_EXPORT int cublasLtMatmulPreferenceDestroy(void*) { return kSuccess; }
SIMCUDA_EXPORT int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return kSuccess; }

SIMCUDA_EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int wanted,
                                                  HeuristicResult* results, int* found) {
  if (wanted < 1 || !results || !found) return kInvalidValue;
  results[0] = {};
  results[0].waves = 1;
  *found = 1;
  return kSuccess;
}

SIMCUDA_EXPORT int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                                  const void*, void*, void*, void*, const void*, void*, size_t, cudaStream_t stream) {
  return simcuda::submit_work(stream) == cudaSuccess ? kSuccess : kExecutionFailed;
}

SIMCUDA_EXPORT int cublasLtMatrixTransformDescCreate(void** out, int) { return make(out); }
SIMCUDA_EXPORT int cublasLtMatrixTransformDescDestroy(void*) { return kSuccess; }
SIMCUDA_EXPORT int cublasLtMatrixTransformDescSetAttribute(void*, int, const void*, size_t) { return kSuccess; }
SIMCUDA_EXPORT int cublasLtMatrixTransform(void*, void*, const void*, const void*, void*, const void*, const void*,
                                           void*, void*, void*, cudaStream_t stream) {
  return simcuda::submit_work(stream) == cudaSuccess ? kSuccess : kExecutionFailed;
}
