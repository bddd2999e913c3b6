// NVML: what the driver says of its devices. It counts all simulated devices, whatever CUDA_VISIBLE_DEVICES says.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "device.h"

namespace simcuda {
namespace {

constexpr int kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7;

struct MemoryV1 {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};
struct ProcessV1 {
  unsigned int process_id;
  unsigned long long used;
};
struct ProcessV2 {  // and V3
  unsigned int process_id;
  unsigned long long used;
  unsigned int gpu_instance, compute_instance;
};
struct PciInfo {
  char legacy_id[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char id[32];
};

// A handle is the device's index, from 1: none is null.
using Handle = void*;
Handle handle_of(int device) { return reinterpret_cast<Handle>(static_cast<intptr_t>(device) + 1); }
int device_of(Handle handle) {
  const auto device = reinterpret_cast<intptr_t>(handle) - 1;
  return device >= 0 && device < settings().devices ? static_cast<int>(device) : -1;
}

// "pid:bytes,pid:bytes": processes that use every device, as SIMCUDA_OTHER_PROCESSES names them.
std::vector<ProcessV1> other_processes() {
  std::vector<ProcessV1> result;
  const char* const text = std::getenv("SIMCUDA_OTHER_PROCESSES");
  std::istringstream list(text ? text : "");
  for (std::string entry; std::getline(list, entry, ',');) {
    const auto colon = entry.find(':');
    if (colon == std::string::npos) continue;
    result.push_back({static_cast<unsigned int>(std::strtoul(entry.c_str(), nullptr, 10)),
                      parse_size("SIMCUDA_OTHER_PROCESSES", entry.c_str() + colon + 1)});
  }
  return result;
}

// What the file named by SIMCUDA_NVML_EXTRA says now: memory whose use changes while the program runs.
uint64_t extra_memory() {
  const char* const path = std::getenv("SIMCUDA_NVML_EXTRA");
  if (!path) return 0;
  std::ifstream file(path);
  std::string text;
  return std::getline(file, text) && !text.empty() ? parse_size("SIMCUDA_NVML_EXTRA", text.c_str()) : 0;
}

template <typename Process>
int list_processes(Handle handle, unsigned int* count, Process* out) {
  const int device = device_of(handle);
  if (device < 0 || !count) return kInvalidArgument;
  std::vector<ProcessV1> all = other_processes();
  if (has_context(device)) all.push_back({static_cast<unsigned int>(getpid()), device_memory(device).process});
  const auto room = *count;
  *count = static_cast<unsigned int>(all.size());
  if (room < all.size()) return kInsufficientSize;
  for (size_t i = 0; i < all.size(); ++i) {
    out[i] = {};
    out[i].process_id = all[i].process_id;
    out[i].used = all[i].used;
  }
  return kSuccess;
}

int copy_text(const std::string& text, char* out, unsigned int size) {
  if (size <= text.size()) return kInsufficientSize;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

template <typename Matches>
int find_device(Handle* out, Matches matches) {
  for (int device = 0; device < settings().devices; ++device) {
    if (!matches(device)) continue;
    *out = handle_of(device);
    return kSuccess;
  }
  return kNotFound;
}

// "0000:01:00.0" and "00000000:01:00.0" are the same.
std::string short_pci_id(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto colon = text.find(':');
  return colon != std::string::npos && text.find(':', colon + 1) != std::string::npos ? text.substr(colon + 1) : text;
}

}  // namespace

uint64_t memory_used_by_others(int) {
  uint64_t sum = extra_memory();
  for (const ProcessV1& process : other_processes()) sum += process.used;
  return sum;
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT int nvmlInit_v2() { return kSuccess; }
SIMCUDA_EXPORT int nvmlInit() { return kSuccess; }
SIMCUDA_EXPORT int nvmlInitWithFlags(unsigned int) { return kSuccess; }
SIMCUDA_EXPORT int nvmlShutdown() { return kSuccess; }
SIMCUDA_EXPORT const char* nvmlErrorString(int error) {
  switch (error) {
    case kSuccess:
      return "Success";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotSupported:
      return "Not Supported";
    case kNotFound:
      return "Not Found";
    case kInsufficientSize:
      return "Insufficient Size";
    default:
      return "Unknown Error";
  }
}
SIMCUDA_EXPORT int nvmlSystemGetCudaDriverVersion(int* version) { return *version = CUDA_VERSION, kSuccess; }
SIMCUDA_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = CUDA_VERSION, kSuccess; }
SIMCUDA_EXPORT int nvmlSystemGetDriverVersion(char* out, unsigned int size) {
  return copy_text("580.00 simulated", out, size);
}
SIMCUDA_EXPORT int nvmlDeviceGetCount_v2(unsigned int* count) {
  return *count = static_cast<unsigned int>(settings().devices), kSuccess;
}
SIMCUDA_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Handle* out) {
  return find_device(out, [&](int device) { return static_cast<unsigned int>(device) == index; });
}
SIMCUDA_EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, Handle* out) {
  return find_device(out, [&](int device) { return device_uuid_text(device) == uuid; });
}
SIMCUDA_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Handle* out) {
  return find_device(out, [&](int device) { return short_pci_id(device_pci_bus_id(device)) == short_pci_id(id); });
}
SIMCUDA_EXPORT int nvmlDeviceGetIndex(Handle handle, unsigned int* out) {
  const int device = device_of(handle);
  if (device < 0) return kInvalidArgument;
  return *out = static_cast<unsigned int>(device), kSuccess;
}
SIMCUDA_EXPORT int nvmlDeviceGetName(Handle handle, char* out, unsigned int size) {
  return device_of(handle) < 0 ? kInvalidArgument : copy_text(device_name(), out, size);
}
SIMCUDA_EXPORT int nvmlDeviceGetUUID(Handle handle, char* out, unsigned int size) {
  const int device = device_of(handle);
  return device < 0 ? kInvalidArgument : copy_text(device_uuid_text(device), out, size);
}
SIMCUDA_EXPORT int nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo* out) {
  const int device = device_of(handle);
  if (device < 0) return kInvalidArgument;
  *out = {};
  std::snprintf(out->id, sizeof out->id, "%s", device_pci_bus_id(device).c_str());
  std::snprintf(out->legacy_id, sizeof out->legacy_id, "0000:%s", short_pci_id(out->id).c_str());
  out->bus = static_cast<unsigned int>(std::strtoul(short_pci_id(out->id).c_str(), nullptr, 16));
  return kSuccess;
}
SIMCUDA_EXPORT int nvmlDeviceGetMemoryInfo(Handle handle, MemoryV1* out) {
  const int device = device_of(handle);
  if (device < 0) return kInvalidArgument;
  const DeviceMemory memory = device_memory(device);
  *out = {memory.total, memory.total - memory.used, memory.used};
  return kSuccess;
}
SIMCUDA_EXPORT int nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2* out) {
  const int device = device_of(handle);
  if (device < 0 || out->version != (sizeof(MemoryV2) | 2u << 24)) return kInvalidArgument;
  const DeviceMemory memory = device_memory(device);
  *out = {out->version, memory.total, 0, memory.total - memory.used, memory.used};
  return kSuccess;
}
SIMCUDA_EXPORT int nvmlDeviceGetComputeRunningProcesses(Handle handle, unsigned int* count, ProcessV1* out) {
  return list_processes(handle, count, out);
}
SIMCUDA_EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned int* count, ProcessV2* out) {
  return list_processes(handle, count, out);
}
SIMCUDA_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned int* count, ProcessV2* out) {
  return list_processes(handle, count, out);
}
SIMCUDA_EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle, unsigned int* count, ProcessV2*) {
  return *count = 0, kSuccess;
}
// Devices without links between them, in no fabric.
SIMCUDA_EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned int, int*) { return kNotSupported; }
SIMCUDA_EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned int, PciInfo*) { return kNotSupported; }
SIMCUDA_EXPORT int nvmlDeviceGetGpuFabricInfoV(Handle, void*) { return kNotSupported; }
SIMCUDA_EXPORT int nvmlDeviceGetUtilizationRates(Handle, void*) { return kNotSupported; }
