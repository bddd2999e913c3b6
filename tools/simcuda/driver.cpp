// Driver calls that are not aliases of runtime calls, and their lookup by name.
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "device.h"
#include "memory.h"
#include "streams.h"

namespace simcuda {
namespace {

// Stub for a function that does not exist; reports the name.
constexpr size_t kUnknownFunctions = 256;
std::array<std::string, kUnknownFunctions> unknown_names;

template <size_t index>
CUresult unknown_function() {
  report_unknown_call(unknown_names[index].c_str());
  return CUDA_ERROR_NOT_SUPPORTED;
}

template <size_t... indices>
constexpr std::array<CUresult (*)(), sizeof...(indices)> unknown_functions(std::index_sequence<indices...>) {
  return {&unknown_function<indices>...};
}

void* function_for_unknown(const std::string& name) {
  static constexpr auto kFunctions = unknown_functions(std::make_index_sequence<kUnknownFunctions>());
  static auto* const given = std::make_unique<std::map<std::string, size_t>>().release();
  const Lock lock(driver_lock());
  const auto [entry, is_new] = given->try_emplace(name, given->size());
  if (entry->second >= kUnknownFunctions) return nullptr;
  if (is_new) unknown_names[entry->second] = name;
  return reinterpret_cast<void*>(kFunctions[entry->second]);
}

void* own_library() {
  static void* const handle = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&function_for_unknown), &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  return handle;
}

// Programs look up "cuMemAlloc" and need cuMemAlloc_v2, the newest version here.
void* find_function(const char* name) {
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    if (void* found = dlsym(own_library(), (std::string(name) + suffix).c_str()); found != nullptr) return found;
  }
  return std::strncmp(name, "cu", 2) == 0 ? function_for_unknown(name) : nullptr;
}

cudaError_t give_entry_point(const char* name, void** function, cudaDriverEntryPointQueryResult* found) {
  if (name == nullptr || function == nullptr) return cudaErrorInvalidValue;
  *function = find_function(name);
  if (found != nullptr)
    *found = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// All contexts are primary; the handle identifies the device. A thread has no current context until it uses a device.
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 0x51ac0001); }
int device_of(CUcontext context) {
  const int device = static_cast<int>(reinterpret_cast<uintptr_t>(context) - 0x51ac0001);
  return device >= 0 && device < settings().devices ? device : -1;
}

thread_local std::vector<CUcontext> pushed_contexts;

}  // namespace
}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                            unsigned long long,
                                                            cudaDriverEntryPointQueryResult* found) {
  return result(give_entry_point(name, function, found));
}

SIMCUDA_EXPORT cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                                   cudaDriverEntryPointQueryResult* found) {
  return result(give_entry_point(name, function, found));
}

SIMCUDA_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                            CUdriverProcAddressQueryResult* found) {
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = find_function(name);
  if (found != nullptr)
    *found = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIMCUDA_EXPORT CUresult cuInit(unsigned) {
  int count = 0;
  return driver_result(cudaGetDeviceCount(&count));
}

SIMCUDA_EXPORT CUresult cuDriverGetVersion(int* version) { return driver_result(cudaDriverGetVersion(version)); }
SIMCUDA_EXPORT CUresult cuDeviceGetCount(int* count) {
  const cudaError_t error = cudaGetDeviceCount(count);
  return driver_result(error == cudaErrorNoDevice ? cudaSuccess : error);
}

SIMCUDA_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (device_of_ordinal(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (device_of_ordinal(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  std::strncpy(name, device_name(), static_cast<size_t>(length));
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) {
  const int device = device_of_ordinal(ordinal);
  if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
  const auto bytes = device_uuid(device);
  std::memcpy(uuid->bytes, bytes.data(), bytes.size());
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (device_of_ordinal(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = settings().memory;
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  // Numbered alike, except for what only the driver reports.
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED && device_of_ordinal(device) >= 0) {
    *value = 1;
    return CUDA_SUCCESS;
  }
  return driver_result(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}

SIMCUDA_EXPORT CUresult cuMemGetInfo_v2(size_t* available, size_t* total) {
  return driver_result(cudaMemGetInfo(available, total));
}

SIMCUDA_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
  return driver_result(cudaMalloc(reinterpret_cast<void**>(address), size));
}

SIMCUDA_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  return driver_result(cudaFree(reinterpret_cast<void*>(address)));
}

SIMCUDA_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const Lock lock(driver_lock());
  const Allocation* found = find_allocation(address);
  if (data == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = found->on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = ordinal_of_device(found->device);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = context_of(found->device);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = found->id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = found->address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = found->size;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<bool*>(data) = found->kind == Allocation::Kind::kManaged;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

SIMCUDA_EXPORT CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
  if (value == 0) return driver_result(cudaMemsetAsync(reinterpret_cast<void*>(address), 0, count * 4, stream));
  return driver_result(submit_work(stream));
}

SIMCUDA_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  const int device = device_of_ordinal(ordinal);
  if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = has_context(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
  const int device = device_of_ordinal(ordinal);
  const cudaError_t error = use_device(device);
  if (error == cudaSuccess) *context = context_of(device);
  return driver_result(error);
}

// A primary context stays until the process ends: programs release it at exit.
SIMCUDA_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return device_of_ordinal(device) < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  const int device = current_device();
  *context = device >= 0 && has_context(device) ? context_of(device) : nullptr;
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  if (context == nullptr) return CUDA_SUCCESS;
  if (device_of(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  set_current_device(device_of(context));
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  CUcontext current = nullptr;
  cuCtxGetCurrent(&current);
  const CUresult error = cuCtxSetCurrent(context);
  if (error == CUDA_SUCCESS) pushed_contexts.push_back(current);
  return error;
}

SIMCUDA_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (pushed_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) cuCtxGetCurrent(context);
  const CUcontext below = pushed_contexts.back();
  pushed_contexts.pop_back();
  return cuCtxSetCurrent(below);
}

SIMCUDA_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  *device = ordinal_of_device(current_device());
  return *device < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuCtxSynchronize() { return driver_result(cudaDeviceSynchronize()); }

// Undocumented tables of functions. NVIDIA's own compiler requests some; it works without them, but crashes without
// this call.
SIMCUDA_EXPORT CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}
