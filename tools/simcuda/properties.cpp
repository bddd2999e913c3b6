// Device properties: the figures of a current data centre GPU, so that libraries choose the same code paths.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "device.h"

namespace simcuda {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int kComputeMajor = 9;
constexpr int kComputeMinor = 0;
constexpr int kDriverVersion = CUDART_VERSION;

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp p{};
  std::snprintf(p.name, sizeof p.name, "%s", device_name());
  const auto uuid = device_uuid(device);
  std::memcpy(p.uuid.bytes, uuid.data(), uuid.size());
  p.totalGlobalMem = settings().memory;
  p.major = kComputeMajor;
  p.minor = kComputeMinor;
  p.multiProcessorCount = kMultiprocessors;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.sharedMemPerBlock = 48 * KiB;
  p.sharedMemPerBlockOptin = 227 * KiB;
  p.sharedMemPerMultiprocessor = 228 * KiB;
  p.reservedSharedMemPerBlock = 1 * KiB;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.l2CacheSize = 50 * MiB;
  p.persistingL2CacheMaxSize = 32 * MiB;
  p.accessPolicyMaxWindowSize = 128 * MiB;
  p.memoryBusWidth = 5120;
  p.memPitch = 2147483647;
  p.totalConstMem = 64 * KiB;
  p.textureAlignment = p.surfaceAlignment = 512;
  p.texturePitchAlignment = 32;
  p.asyncEngineCount = 3;
  p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = 1;
  p.streamPrioritiesSupported = p.globalL1CacheSupported = p.localL1CacheSupported = 1;
  p.managedMemory = p.concurrentManagedAccess = 1;
  p.computePreemptionSupported = p.canUseHostPointerForRegisteredMem = p.hostRegisterSupported = 1;
  p.cooperativeLaunch = p.clusterLaunch = p.unifiedFunctionPointers = 1;
  p.memoryPoolsSupported = 1;
  p.ECCEnabled = 1;
  p.pciBusID = device + 1;
#if CUDART_VERSION >= 13000
  p.hostNumaId = p.deviceNumaId = -1;
#endif
  return p;
}

std::map<cudaDeviceAttr, int> attributes_of(int device) {
  const cudaDeviceProp p = properties_of(device);
  const auto of = [](auto number) { return static_cast<int>(number); };
  return {
      {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
      {cudaDevAttrMaxBlockDimX, p.maxThreadsDim[0]},
      {cudaDevAttrMaxBlockDimY, p.maxThreadsDim[1]},
      {cudaDevAttrMaxBlockDimZ, p.maxThreadsDim[2]},
      {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
      {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
      {cudaDevAttrMaxGridDimZ, p.maxGridSize[2]},
      {cudaDevAttrMaxSharedMemoryPerBlock, of(p.sharedMemPerBlock)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, of(p.sharedMemPerBlockOptin)},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, of(p.sharedMemPerMultiprocessor)},
      {cudaDevAttrReservedSharedMemoryPerBlock, of(p.reservedSharedMemPerBlock)},
      {cudaDevAttrTotalConstantMemory, of(p.totalConstMem)},
      {cudaDevAttrWarpSize, p.warpSize},
      {cudaDevAttrMaxPitch, of(p.memPitch)},
      {cudaDevAttrMaxRegistersPerBlock, p.regsPerBlock},
      {cudaDevAttrMaxRegistersPerMultiprocessor, p.regsPerMultiprocessor},
      {cudaDevAttrClockRate, 1980000},
      {cudaDevAttrMemoryClockRate, 2619000},
      {cudaDevAttrTextureAlignment, of(p.textureAlignment)},
      {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
      {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
      {cudaDevAttrMaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor},
      {cudaDevAttrGlobalMemoryBusWidth, p.memoryBusWidth},
      {cudaDevAttrL2CacheSize, p.l2CacheSize},
      {cudaDevAttrMaxPersistingL2CacheSize, p.persistingL2CacheMaxSize},
      {cudaDevAttrMaxAccessPolicyWindowSize, p.accessPolicyMaxWindowSize},
      {cudaDevAttrComputeCapabilityMajor, p.major},
      {cudaDevAttrComputeCapabilityMinor, p.minor},
      {cudaDevAttrAsyncEngineCount, p.asyncEngineCount},
      {cudaDevAttrPciBusId, p.pciBusID},
      {cudaDevAttrEccEnabled, p.ECCEnabled},
      {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2},
      {cudaDevAttrHostNumaId, -1},
      {cudaDevAttrNumaId, -1},
      {cudaDevAttrConcurrentKernels, 1},
      {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrCanMapHostMemory, 1},
      {cudaDevAttrStreamPrioritiesSupported, 1},
      {cudaDevAttrGlobalL1CacheSupported, 1},
      {cudaDevAttrLocalL1CacheSupported, 1},
      {cudaDevAttrManagedMemory, 1},
      {cudaDevAttrConcurrentManagedAccess, 1},
      {cudaDevAttrComputePreemptionSupported, 1},
      {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
      {cudaDevAttrHostRegisterSupported, 1},
      {cudaDevAttrCooperativeLaunch, 1},
      {cudaDevAttrClusterLaunch, 1},
      {cudaDevAttrMemoryPoolsSupported, 1},
  };
}

}  // namespace

const char* device_name() { return "Simulated CUDA Device"; }

std::array<unsigned char, 16> device_uuid(int device) {
  return {'s', 'i', 'm', 'c', 'u', 'd', 0x40, 'a', 0x80, 0, 0, 0, 0, 0, 0, static_cast<unsigned char>(device)};
}

std::string device_uuid_text(int device) {
  std::string text = "GPU-";
  const auto uuid = device_uuid(device);
  for (size_t index = 0; index < uuid.size(); ++index) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", uuid[index]);
    if (index == 4 || index == 6 || index == 8 || index == 10) text += '-';
    text += digits;
  }
  return text;
}

std::string device_pci_bus_id(int device) {
  char text[24];
  std::snprintf(text, sizeof text, "00000000:%02X:00.0", static_cast<unsigned>(device + 1));
  return text;
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  const int device = device_of_ordinal(ordinal);
  if (properties == nullptr) return result(cudaErrorInvalidValue);
  if (device < 0) return result(cudaErrorInvalidDevice);
  *properties = properties_of(device);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  const int device = device_of_ordinal(ordinal);
  if (value == nullptr || attribute < 1) return result(cudaErrorInvalidValue);
  if (device < 0) return result(cudaErrorInvalidDevice);
  const auto attributes = attributes_of(device);
  const auto found = attributes.find(attribute);
  *value = found == attributes.end() ? 0 : found->second;  // 0: the device lacks the feature
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  *version = kDriverVersion;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}
