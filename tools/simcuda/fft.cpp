// cuFFT: plans that need no workspace, and transforms that are work on the plan's stream.
#include <cufft.h>
#include <cufftXt.h>

#include <map>
#include <memory>

#include "simcuda.h"

namespace simcuda {
namespace {

std::map<cufftHandle, cudaStream_t>& plans() {
  static auto* const all = std::make_unique<std::map<cufftHandle, cudaStream_t>>().release();
  return *all;
}

cufftResult with_plan(cufftHandle plan) {
  const Lock lock(driver_lock());
  return plans().contains(plan) ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}

cufftResult create(cufftHandle* plan) {
  if (plan == nullptr) return CUFFT_INVALID_VALUE;
  if (cudaFree(nullptr) != cudaSuccess) return CUFFT_SETUP_FAILED;  // creates the context, as the real library does
  const Lock lock(driver_lock());
  static cufftHandle last = 0;
  plans()[*plan = ++last] = nullptr;
  return CUFFT_SUCCESS;
}

cufftResult tell_no_workspace(cufftHandle plan, size_t* size) {
  if (size != nullptr) *size = 0;
  return with_plan(plan);
}

cufftResult transform(cufftHandle plan) {
  cudaStream_t stream = nullptr;
  {
    const Lock lock(driver_lock());
    const auto found = plans().find(plan);
    if (found == plans().end()) return CUFFT_INVALID_PLAN;
    stream = found->second;
  }
  return submit_work(stream) == cudaSuccess ? CUFFT_SUCCESS : CUFFT_EXEC_FAILED;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cufftResult cufftCreate(cufftHandle* plan) { return create(plan); }
SIMCUDA_EXPORT cufftResult cufftPlan1d(cufftHandle* plan, int, cufftType, int) { return create(plan); }
SIMCUDA_EXPORT cufftResult cufftPlan2d(cufftHandle* plan, int, int, cufftType) { return create(plan); }
SIMCUDA_EXPORT cufftResult cufftPlan3d(cufftHandle* plan, int, int, int, cufftType) { return create(plan); }
SIMCUDA_EXPORT cufftResult cufftPlanMany(cufftHandle* plan, int, int*, int*, int, int, int*, int, int, cufftType, int) {
  return create(plan);
}

SIMCUDA_EXPORT cufftResult cufftMakePlanMany64(cufftHandle plan, int, long long*, long long*, long long, long long,
                                               long long*, long long, long long, cufftType, long long, size_t* size) {
  return tell_no_workspace(plan, size);
}
SIMCUDA_EXPORT cufftResult cufftXtMakePlanMany(cufftHandle plan, int, long long*, long long*, long long, long long,
                                               cudaDataType, long long*, long long, long long, cudaDataType, long long,
                                               size_t* size, cudaDataType) {
  return tell_no_workspace(plan, size);
}
SIMCUDA_EXPORT cufftResult cufftGetSize(cufftHandle plan, size_t* size) { return tell_no_workspace(plan, size); }

SIMCUDA_EXPORT cufftResult cufftSetAutoAllocation(cufftHandle plan, int) { return with_plan(plan); }
SIMCUDA_EXPORT cufftResult cufftSetWorkArea(cufftHandle plan, void*) { return with_plan(plan); }

SIMCUDA_EXPORT cufftResult cufftSetStream(cufftHandle plan, cudaStream_t stream) {
  const Lock lock(driver_lock());
  const auto found = plans().find(plan);
  if (found == plans().end()) return CUFFT_INVALID_PLAN;
  found->second = stream;
  return CUFFT_SUCCESS;
}

SIMCUDA_EXPORT cufftResult cufftDestroy(cufftHandle plan) {
  const Lock lock(driver_lock());
  return plans().erase(plan) > 0 ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}

SIMCUDA_EXPORT cufftResult cufftXtExec(cufftHandle plan, void*, void*, int) { return transform(plan); }
SIMCUDA_EXPORT cufftResult cufftExecC2C(cufftHandle plan, cufftComplex*, cufftComplex*, int) { return transform(plan); }
SIMCUDA_EXPORT cufftResult cufftExecR2C(cufftHandle plan, cufftReal*, cufftComplex*) { return transform(plan); }
SIMCUDA_EXPORT cufftResult cufftExecC2R(cufftHandle plan, cufftComplex*, cufftReal*) { return transform(plan); }
SIMCUDA_EXPORT cufftResult cufftExecZ2Z(cufftHandle plan, cufftDoubleComplex*, cufftDoubleComplex*, int) {
  return transform(plan);
}
SIMCUDA_EXPORT cufftResult cufftExecD2Z(cufftHandle plan, cufftDoubleReal*, cufftDoubleComplex*) {
  return transform(plan);
}
SIMCUDA_EXPORT cufftResult cufftExecZ2D(cufftHandle plan, cufftDoubleComplex*, cufftDoubleReal*) {
  return transform(plan);
}
