// The compute functions of cuBLAS: they put work on the handle's stream and, like all kernels here, compute no values.
// Each exists with 32-bit and with 64-bit arguments.
#include <library_types.h>

#include <complex>

#include "blas.h"

using namespace simcuda::blas;

#define SIMCUDA_COMPUTE_ONE(name) \
  SIMCUDA_EXPORT int name(const Handle* handle) { return compute(handle); }
#define SIMCUDA_COMPUTE(name)       \
  SIMCUDA_COMPUTE_ONE(cublas##name) \
  SIMCUDA_COMPUTE_ONE(cublas##name##_64)
// The routine's name is preceded by the letter of its type: single, double, complex or double complex.
#define SIMCUDA_COMPUTE_REAL(routine) \
  SIMCUDA_COMPUTE(S##routine)         \
  SIMCUDA_COMPUTE(D##routine)
#define SIMCUDA_COMPUTE_COMPLEX(routine) \
  SIMCUDA_COMPUTE(C##routine)            \
  SIMCUDA_COMPUTE(Z##routine)
#define SIMCUDA_COMPUTE_ALL(routine) \
  SIMCUDA_COMPUTE_REAL(routine)      \
  SIMCUDA_COMPUTE_COMPLEX(routine)

// --- Vectors
SIMCUDA_COMPUTE_ALL(axpy_v2)
SIMCUDA_COMPUTE_ALL(copy_v2)
SIMCUDA_COMPUTE_ALL(scal_v2)
SIMCUDA_COMPUTE_ALL(swap_v2)
SIMCUDA_COMPUTE_ALL(rot_v2)
SIMCUDA_COMPUTE_REAL(rotm_v2)
SIMCUDA_COMPUTE(Csscal_v2)
SIMCUDA_COMPUTE(Zdscal_v2)
SIMCUDA_COMPUTE(Csrot_v2)
SIMCUDA_COMPUTE(Zdrot_v2)
SIMCUDA_COMPUTE(AxpyEx)
SIMCUDA_COMPUTE(CopyEx)
SIMCUDA_COMPUTE(RotEx)
SIMCUDA_COMPUTE(RotmEx)
SIMCUDA_COMPUTE(ScalEx)
SIMCUDA_COMPUTE(SwapEx)

// --- A matrix and vectors
SIMCUDA_COMPUTE_ALL(gemv_v2)
SIMCUDA_COMPUTE_ALL(gemvBatched)
SIMCUDA_COMPUTE_ALL(gemvStridedBatched)
SIMCUDA_COMPUTE(HSHgemvBatched)
SIMCUDA_COMPUTE(HSHgemvStridedBatched)
SIMCUDA_COMPUTE(HSSgemvBatched)
SIMCUDA_COMPUTE(HSSgemvStridedBatched)
SIMCUDA_COMPUTE(TSTgemvBatched)
SIMCUDA_COMPUTE(TSTgemvStridedBatched)
SIMCUDA_COMPUTE(TSSgemvBatched)
SIMCUDA_COMPUTE(TSSgemvStridedBatched)
SIMCUDA_COMPUTE_ALL(gbmv_v2)
SIMCUDA_COMPUTE_ALL(symv_v2)
SIMCUDA_COMPUTE_REAL(sbmv_v2)
SIMCUDA_COMPUTE_REAL(spmv_v2)
SIMCUDA_COMPUTE_COMPLEX(hemv_v2)
SIMCUDA_COMPUTE_COMPLEX(hbmv_v2)
SIMCUDA_COMPUTE_COMPLEX(hpmv_v2)
SIMCUDA_COMPUTE_ALL(trmv_v2)
SIMCUDA_COMPUTE_ALL(tbmv_v2)
SIMCUDA_COMPUTE_ALL(tpmv_v2)
SIMCUDA_COMPUTE_ALL(trsv_v2)
SIMCUDA_COMPUTE_ALL(tbsv_v2)
SIMCUDA_COMPUTE_ALL(tpsv_v2)
SIMCUDA_COMPUTE_REAL(ger_v2)
SIMCUDA_COMPUTE_COMPLEX(geru_v2)
SIMCUDA_COMPUTE_COMPLEX(gerc_v2)
SIMCUDA_COMPUTE_ALL(syr_v2)
SIMCUDA_COMPUTE_ALL(syr2_v2)
SIMCUDA_COMPUTE_REAL(spr_v2)
SIMCUDA_COMPUTE_REAL(spr2_v2)
SIMCUDA_COMPUTE_COMPLEX(her_v2)
SIMCUDA_COMPUTE_COMPLEX(her2_v2)
SIMCUDA_COMPUTE_COMPLEX(hpr_v2)
SIMCUDA_COMPUTE_COMPLEX(hpr2_v2)

// --- Matrices
SIMCUDA_COMPUTE_ALL(gemm_v2)
SIMCUDA_COMPUTE_ALL(gemmBatched)
SIMCUDA_COMPUTE_ALL(gemmStridedBatched)
SIMCUDA_COMPUTE_REAL(gemmGroupedBatched)
SIMCUDA_COMPUTE(Hgemm)
SIMCUDA_COMPUTE(HgemmBatched)
SIMCUDA_COMPUTE(HgemmStridedBatched)
SIMCUDA_COMPUTE_COMPLEX(gemm3m)
SIMCUDA_COMPUTE(Cgemm3mBatched)
SIMCUDA_COMPUTE(Cgemm3mStridedBatched)
SIMCUDA_COMPUTE(Cgemm3mEx)
SIMCUDA_COMPUTE(SgemmEx)
SIMCUDA_COMPUTE(CgemmEx)
SIMCUDA_COMPUTE(GemmEx)
SIMCUDA_COMPUTE(GemmBatchedEx)
SIMCUDA_COMPUTE(GemmStridedBatchedEx)
SIMCUDA_COMPUTE(GemmGroupedBatchedEx)
SIMCUDA_COMPUTE_ALL(symm_v2)
SIMCUDA_COMPUTE_ALL(syrk_v2)
SIMCUDA_COMPUTE_ALL(syr2k_v2)
SIMCUDA_COMPUTE_ALL(syrkx)
SIMCUDA_COMPUTE(CsyrkEx)
SIMCUDA_COMPUTE(Csyrk3mEx)
SIMCUDA_COMPUTE_COMPLEX(hemm_v2)
SIMCUDA_COMPUTE_COMPLEX(herk_v2)
SIMCUDA_COMPUTE_COMPLEX(her2k_v2)
SIMCUDA_COMPUTE_COMPLEX(herkx)
SIMCUDA_COMPUTE(CherkEx)
SIMCUDA_COMPUTE(Cherk3mEx)
SIMCUDA_COMPUTE_ALL(trmm_v2)
SIMCUDA_COMPUTE_ALL(trsm_v2)
SIMCUDA_COMPUTE_ALL(trsmBatched)
SIMCUDA_COMPUTE_ALL(geam)
SIMCUDA_COMPUTE_ALL(dgmm)
SIMCUDA_COMPUTE_ALL(tpttr)
SIMCUDA_COMPUTE_ALL(trttp)

// --- Factorisations whose outcome lies on the device
SIMCUDA_COMPUTE_ALL(getrfBatched)
SIMCUDA_COMPUTE_ALL(getriBatched)
SIMCUDA_COMPUTE_ALL(matinvBatched)

namespace {

// Scalar results in host memory must be written, or the program reads uninitialised memory.
template <class Value>
int compute_number(const Handle* handle, Value* number) {
  const int status = compute(handle);
  if (status == kSuccess && handle->pointer_mode == 0 && number != nullptr) *number = Value();
  return status;
}

// Success, always.
int compute_outcome(const Handle* handle, int* outcome) {
  const int status = compute(handle);
  if (status == kSuccess && outcome != nullptr) *outcome = 0;
  return status;
}

int compute_number_of(cudaDataType type, const Handle* handle, void* number) {
  switch (type) {
    case CUDA_C_64F:
      return compute_number(handle, static_cast<std::complex<double>*>(number));
    case CUDA_C_32F:
      return compute_number(handle, static_cast<std::complex<float>*>(number));
    case CUDA_R_64F:
      return compute_number(handle, static_cast<double*>(number));
    case CUDA_R_32F:
    case CUDA_C_16F:
    case CUDA_C_16BF:
      return compute_number(handle, static_cast<float*>(number));
    default:
      return compute_number(handle, static_cast<uint16_t*>(number));
  }
}

using Ignored = const void*;

}  // namespace

#define SIMCUDA_DOT_ONE(name, Value)                                                                          \
  SIMCUDA_EXPORT int name(const Handle* handle, Ignored, Ignored, Ignored, Ignored, Ignored, Value* number) { \
    return compute_number(handle, number);                                                                    \
  }
#define SIMCUDA_DOT(name, Value)       \
  SIMCUDA_DOT_ONE(cublas##name, Value) \
  SIMCUDA_DOT_ONE(cublas##name##_64, Value)
SIMCUDA_DOT(Sdot_v2, float)
SIMCUDA_DOT(Ddot_v2, double)
SIMCUDA_DOT(Cdotu_v2, std::complex<float>)
SIMCUDA_DOT(Cdotc_v2, std::complex<float>)
SIMCUDA_DOT(Zdotu_v2, std::complex<double>)
SIMCUDA_DOT(Zdotc_v2, std::complex<double>)

#define SIMCUDA_REDUCE_ONE(name, Value)                                                     \
  SIMCUDA_EXPORT int name(const Handle* handle, Ignored, Ignored, Ignored, Value* number) { \
    return compute_number(handle, number);                                                  \
  }
#define SIMCUDA_REDUCE(name, Value)       \
  SIMCUDA_REDUCE_ONE(cublas##name, Value) \
  SIMCUDA_REDUCE_ONE(cublas##name##_64, Value)
SIMCUDA_REDUCE(Snrm2_v2, float)
SIMCUDA_REDUCE(Dnrm2_v2, double)
SIMCUDA_REDUCE(Scnrm2_v2, float)
SIMCUDA_REDUCE(Dznrm2_v2, double)
SIMCUDA_REDUCE(Sasum_v2, float)
SIMCUDA_REDUCE(Dasum_v2, double)
SIMCUDA_REDUCE(Scasum_v2, float)
SIMCUDA_REDUCE(Dzasum_v2, double)

// The index of an extreme value, counted from 1: always the first.
#define SIMCUDA_PLACE_ONE(name, Place)                                                     \
  SIMCUDA_EXPORT int name(const Handle* handle, Ignored, Ignored, Ignored, Place* place) { \
    const int status = compute_number(handle, place);                                      \
    if (status == kSuccess && handle->pointer_mode == 0 && place != nullptr) *place = 1;   \
    return status;                                                                         \
  }
#define SIMCUDA_PLACE(name)                  \
  SIMCUDA_PLACE_ONE(cublasI##name##_v2, int) \
  SIMCUDA_PLACE_ONE(cublasI##name##_v2_64, int64_t)
SIMCUDA_PLACE(samax)
SIMCUDA_PLACE(damax)
SIMCUDA_PLACE(camax)
SIMCUDA_PLACE(zamax)
SIMCUDA_PLACE(samin)
SIMCUDA_PLACE(damin)
SIMCUDA_PLACE(camin)
SIMCUDA_PLACE(zamin)

// A scalar whose type is an argument.
#define SIMCUDA_DOT_EX(name)                                                                                   \
  SIMCUDA_EXPORT int name(const Handle* handle, Ignored, Ignored, Ignored, Ignored, Ignored, Ignored, Ignored, \
                          void* number, cudaDataType type) {                                                   \
    return compute_number_of(type, handle, number);                                                            \
  }
SIMCUDA_DOT_EX(cublasDotEx)
SIMCUDA_DOT_EX(cublasDotcEx)
SIMCUDA_DOT_EX(cublasDotEx_64)
SIMCUDA_DOT_EX(cublasDotcEx_64)

// --- Factorisations that report their outcome to the host
#define SIMCUDA_OUTCOME(name, ...)                                                    \
  SIMCUDA_EXPORT int name(const Handle* handle, __VA_ARGS__, int* outcome, Ignored) { \
    return compute_outcome(handle, outcome);                                          \
  }
#define SIMCUDA_OUTCOME_ALL(routine, ...)        \
  SIMCUDA_OUTCOME(cublasS##routine, __VA_ARGS__) \
  SIMCUDA_OUTCOME(cublasD##routine, __VA_ARGS__) \
  SIMCUDA_OUTCOME(cublasC##routine, __VA_ARGS__) \
  SIMCUDA_OUTCOME(cublasZ##routine, __VA_ARGS__)
SIMCUDA_OUTCOME_ALL(geqrfBatched, Ignored, Ignored, Ignored, Ignored, Ignored)
SIMCUDA_OUTCOME_ALL(gelsBatched, Ignored, Ignored, Ignored, Ignored, Ignored, Ignored, Ignored, Ignored)
SIMCUDA_OUTCOME_ALL(getrsBatched, Ignored, Ignored, Ignored, Ignored, Ignored, Ignored, Ignored, Ignored)
