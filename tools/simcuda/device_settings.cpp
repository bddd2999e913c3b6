// Calls for settings without effect here: limits, caches, hints, profilers.
#include <map>
#include <memory>
#include <utility>

#include "device.h"

namespace simcuda {
namespace {

std::map<std::pair<int, cudaLimit>, size_t>& limits() {
  static auto* const all = std::make_unique<std::map<std::pair<int, cudaLimit>, size_t>>().release();
  return *all;
}

size_t default_limit(cudaLimit limit) {
  switch (limit) {
    case cudaLimitStackSize:
      return 1 * KiB;
    case cudaLimitPrintfFifoSize:
      return 1 * MiB;
    case cudaLimitMallocHeapSize:
      return 8 * MiB;
    default:
      return 0;
  }
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  limits()[{current_device(), limit}] = value;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  if (value == nullptr) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  const auto found = limits().find({current_device(), limit});
  *value = found == limits().end() ? default_limit(limit) : found->second;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaProfilerStart() { return result(use_current_device()); }
SIMCUDA_EXPORT cudaError_t cudaProfilerStop() { return result(use_current_device()); }
SIMCUDA_EXPORT cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
SIMCUDA_EXPORT cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }
SIMCUDA_EXPORT cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }

SIMCUDA_EXPORT cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  if (flags == nullptr) return result(cudaErrorInvalidValue);
  *flags = cudaDeviceScheduleAuto;
  return cudaSuccess;
}

#if CUDART_VERSION >= 13000
SIMCUDA_EXPORT cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
SIMCUDA_EXPORT cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t stream) {
  return result(submit_work(stream));
}
#else
SIMCUDA_EXPORT cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return cudaSuccess; }
SIMCUDA_EXPORT cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t stream) {
  return result(submit_work(stream));
}
#endif
