// The driver's modules: kernels that a program compiled while it ran (torch does, for some special functions). Loaded
// by name only.
#include <map>
#include <memory>
#include <string>

#include "device.h"
#include "kernels.h"
#include "streams.h"

namespace simcuda {
namespace {

struct Module {
  std::map<std::string, std::unique_ptr<std::string>> functions;  // the address of the text is the handle
};

std::map<CUmodule, std::unique_ptr<Module>>& modules() {
  static auto* const all = std::make_unique<std::map<CUmodule, std::unique_ptr<Module>>>().release();
  return *all;
}

CUresult load(CUmodule* handle, const void* image) {
  if (handle == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return driver_result(error);
  const Lock lock(driver_lock());
  auto module = std::make_unique<Module>();
  *handle = reinterpret_cast<CUmodule>(module.get());
  modules()[*handle] = std::move(module);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT CUresult cuModuleLoad(CUmodule* module, const char* path) { return load(module, path); }
SIMCUDA_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) { return load(module, image); }
SIMCUDA_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return load(module, image);
}

SIMCUDA_EXPORT CUresult cuModuleUnload(CUmodule module) {
  const Lock lock(driver_lock());
  return modules().erase(module) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIMCUDA_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  const Lock lock(driver_lock());
  const auto found = modules().find(handle);
  if (function == nullptr || name == nullptr || found == modules().end()) return CUDA_ERROR_INVALID_HANDLE;
  auto& known = found->second->functions[name];
  if (known == nullptr) known = std::make_unique<std::string>(name);
  *function = reinterpret_cast<CUfunction>(known.get());
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  if (value == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = 90;
      break;
    default:
      *value = 0;
      break;
  }
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
SIMCUDA_EXPORT CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

SIMCUDA_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                       CUstream stream, void**, void**) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return driver_result(launch_kernel(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream));
}

SIMCUDA_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                                  unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                                                  unsigned shared, CUstream stream, void** arguments) {
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments,
                        nullptr);
}

SIMCUDA_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void** arguments, void** extra) {
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return cuLaunchKernel(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                        c->sharedMemBytes, c->hStream, arguments, extra);
}

SIMCUDA_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int block_size,
                                                                    size_t shared) {
  return driver_result(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, shared));
}
