// Names and texts of errors, identical to CUDA's: programs print them, and users search for them.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>

#include "simcuda.h"

namespace {

struct ErrorEntry {
  int number;
  const char* runtime_name;
  const char* driver_name;
  const char* text;
};

constexpr ErrorEntry kErrors[] = {
#define SIMCUDA_ERROR(number, runtime_name, driver_name, text) {number, runtime_name, driver_name, text},
#include "errors.inc"
#undef SIMCUDA_ERROR
};

constexpr const char* kUnrecognized = "unrecognized error code";

const ErrorEntry* find_error(int number) {
  const auto* found = std::lower_bound(std::begin(kErrors), std::end(kErrors), number,
                                       [](const ErrorEntry& entry, int wanted) { return entry.number < wanted; });
  return found != std::end(kErrors) && found->number == number ? found : nullptr;
}

}  // namespace

SIMCUDA_EXPORT const char* cudaGetErrorName(cudaError_t error) {
  const ErrorEntry* entry = find_error(error);
  return entry != nullptr && entry->runtime_name != nullptr ? entry->runtime_name : kUnrecognized;
}

SIMCUDA_EXPORT const char* cudaGetErrorString(cudaError_t error) {
  const ErrorEntry* entry = find_error(error);
  return entry != nullptr && entry->runtime_name != nullptr ? entry->text : kUnrecognized;
}

SIMCUDA_EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  const ErrorEntry* entry = find_error(error);
  *name = entry != nullptr ? entry->driver_name : nullptr;
  return *name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIMCUDA_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  const ErrorEntry* entry = find_error(error);
  *text = entry != nullptr && entry->driver_name != nullptr ? entry->text : nullptr;
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#if CUDART_VERSION >= 13000
// Callbacks for error logs: never called, because errors here have no details. Since 2.15, torch registers a callback
// as soon as it uses the device.
SIMCUDA_EXPORT CUresult cuLogsRegisterCallback(CUlogsCallback callback, void*, CUlogsCallbackHandle* handle) {
  if (callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
  static std::atomic<std::uintptr_t> given{0};
  if (handle != nullptr) *handle = reinterpret_cast<CUlogsCallbackHandle>(++given);
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  return handle != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
#endif
