// Kernels: registered, queried, launched, and never run.
#include "kernels.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "content.h"
#include "device.h"
#include "graphs.h"
#include "streams.h"

namespace simcuda {
namespace {

struct CallConfiguration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<CallConfiguration> call_configurations;

// Names by the address of the host function, for queries; torch registers tens of thousands at import.
std::unordered_map<const void*, const char*>& kernel_names() {
  static auto* const names = std::make_unique<std::unordered_map<const void*, const char*>>().release();
  return *names;
}

bool fits(const dim3& grid, const dim3& block) {
  const auto in = [](unsigned value, unsigned largest) { return value >= 1 && value <= largest; };
  return in(grid.x, 2147483647) && in(grid.y, 65535) && in(grid.z, 65535) && in(block.x, 1024) && in(block.y, 1024) &&
         in(block.z, 64) && static_cast<uint64_t>(block.x) * block.y * block.z <= 1024;
}

}  // namespace

cudaError_t launch_kernel(const void* function, const dim3& grid, const dim3& block, size_t shared,
                          cudaStream_t handle) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return error;
  if (!fits(grid, block)) return cudaErrorInvalidConfiguration;
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_implicit_dependency(stream); error != cudaSuccess) return error;
  if (stream->capture == nullptr) {
    note_launch();
    enqueue(stream, {});
    return cudaSuccess;
  }
  if (stream->capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  // Without the arguments: their sizes are in the kernel's binary, which is not read here.
  auto node = std::make_shared<Node>();
  node->type = cudaGraphNodeTypeKernel;
  node->kernel.func = const_cast<void*>(function);
  node->kernel.gridDim = grid;
  node->kernel.blockDim = block;
  node->kernel.sharedMemBytes = static_cast<unsigned>(shared);
  capture_node(stream, std::move(node));
  return cudaSuccess;
}

}  // namespace simcuda

using namespace simcuda;

// --- Functions that compiled code calls
SIMCUDA_EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  if (switch_off_cudnn != nullptr) switch_off_cudnn();
  return &handle;
}
SIMCUDA_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
SIMCUDA_EXPORT void __cudaUnregisterFatBinary(void**) {}
SIMCUDA_EXPORT char __cudaInitModule(void**) { return 1; }
SIMCUDA_EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
SIMCUDA_EXPORT void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}

SIMCUDA_EXPORT void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, uint3*,
                                           uint3*, dim3*, dim3*, int*) {
  const Lock lock(driver_lock());
  kernel_names()[host_function] = name;
}

SIMCUDA_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  call_configurations.push_back({grid, block, shared, stream});
  return 0;
}

SIMCUDA_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (call_configurations.empty()) return result(cudaErrorMissingConfiguration);
  const CallConfiguration& top = call_configurations.back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  call_configurations.pop_back();
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t shared,
                                              cudaStream_t stream) {
  return result(launch_kernel(kernel, grid, block, shared, stream));
}

// --- Launches
SIMCUDA_EXPORT cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t shared,
                                            cudaStream_t stream) {
  return result(launch_kernel(function, grid, block, shared, stream));
}

SIMCUDA_EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void**,
                                                       size_t shared, cudaStream_t stream) {
  return result(launch_kernel(function, grid, block, shared, stream));
}

SIMCUDA_EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function, void**) {
  if (configuration == nullptr) return result(cudaErrorInvalidValue);
  return result(launch_kernel(function, configuration->gridDim, configuration->blockDim,
                              configuration->dynamicSmemBytes, configuration->stream));
}

// --- Properties of kernels. The figures are those of a small kernel, because the binary is not read here.
SIMCUDA_EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (attributes == nullptr || function == nullptr) return result(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(227 * KiB);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
SIMCUDA_EXPORT cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }

SIMCUDA_EXPORT cudaError_t cudaFuncGetName(const char** name, const void* function) {
  const Lock lock(driver_lock());
  const auto found = kernel_names().find(function);
  if (name == nullptr || found == kernel_names().end()) return result(cudaErrorInvalidDeviceFunction);
  *name = found->second;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                                  int block_size, size_t, unsigned) {
  if (blocks == nullptr || block_size <= 0) return result(cudaErrorInvalidValue);
  *blocks = std::min(32, 2048 / std::min(block_size, 2048));
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                                         int block_size, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared, 0);
}
