// NVML: the devices, visible or not, and the memory that each process uses on them.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "nvml_types.h"
#include "other_processes.h"
#include "simcuda.h"

namespace simcuda::nvml {
namespace {

std::atomic<int> users{0};  // initialised and not yet shut down this many times

// A handle is the device's number plus one: none is null.
Handle handle_of(int device) { return reinterpret_cast<Handle>(static_cast<uintptr_t>(device) + 1); }
int device_of(Handle handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  return number >= 1 && number <= static_cast<uintptr_t>(settings().devices) ? static_cast<int>(number - 1) : -1;
}

Status check(Handle handle) {
  if (users <= 0) return kUninitialized;
  return device_of(handle) < 0 ? kInvalidArgument : kSuccess;
}

Status copy_text(const std::string& text, char* to, unsigned length) {
  if (to == nullptr) return kInvalidArgument;
  if (text.size() + 1 > length) return kInsufficientSize;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return kSuccess;
}

// The first device for which `matches` holds.
template <class Matches>
Status find_device(Handle* handle, Matches matches) {
  if (users <= 0) return kUninitialized;
  if (handle == nullptr) return kInvalidArgument;
  for (int device = 0; device < settings().devices; ++device) {
    if (matches(device)) {
      *handle = handle_of(device);
      return kSuccess;
    }
  }
  return kNotFound;
}

// "00000000:01:00.0"; programs also write the domain with four digits, and letters of either case.
bool is_pci_bus_id(int device, const char* text) {
  unsigned domain = 0, bus = 0, slot = 0, wanted[3] = {};
  std::sscanf(device_pci_bus_id(device).c_str(), "%x:%x:%x", &domain, &bus, &slot);
  return std::sscanf(text, "%x:%x:%x", &wanted[0], &wanted[1], &wanted[2]) == 3 && wanted[0] == domain &&
         wanted[1] == bus && wanted[2] == slot;
}

template <class Info>
Status pci_info(Handle handle, Info* info) {
  if (const Status status = check(handle); status != kSuccess) return status;
  if (info == nullptr) return kInvalidArgument;
  *info = {};
  const std::string text = device_pci_bus_id(device_of(handle));
  std::sscanf(text.c_str(), "%x:%x:%x", &info->domain, &info->bus, &info->device);
  info->pci_device_id = 0x233010de;  // an H100, whose figures the device reports
  copy_text(text.substr(4), info->bus_id_legacy, sizeof info->bus_id_legacy);
  if constexpr (requires { info->bus_id; }) copy_text(text, info->bus_id, sizeof info->bus_id);
  return kSuccess;
}

std::vector<OtherProcess> processes_on(int device) {
  std::vector<OtherProcess> all = other_processes(device);
  // A process is listed as soon as it has a context.
  if (const uint64_t own = device_memory(device).process; own > 0) {
    all.insert(all.begin(), {static_cast<unsigned>(getpid()), own});
  }
  return all;
}

// SIMCUDA_NVML_HANG: returns when the file is gone. Each query that hangs adds a line to the file.
void hang_where_asked() {
  const std::string& path = settings().nvml_hang;
  if (path.empty() || access(path.c_str(), F_OK) != 0) return;
  std::ofstream(path, std::ios::app) << "hangs" << std::endl;
  while (access(path.c_str(), F_OK) == 0) usleep(1000);
}

template <class Entry>
Status list_processes(Handle handle, unsigned* count, Entry* entries) {
  hang_where_asked();
  if (const Status status = check(handle); status != kSuccess) return status;
  if (count == nullptr) return kInvalidArgument;
  const std::vector<OtherProcess> found = processes_on(device_of(handle));
  const unsigned room = *count;
  *count = static_cast<unsigned>(found.size());
  if (found.size() > room || (entries == nullptr && !found.empty())) return kInsufficientSize;
  for (size_t index = 0; index < found.size(); ++index) {
    entries[index] = {};
    entries[index].pid = found[index].pid;
    entries[index].used = found[index].bytes;
    if constexpr (requires { entries[index].gpu_instance; }) {
      entries[index].gpu_instance = entries[index].compute_instance = 0xffffffff;  // the device is not partitioned
    }
  }
  return kSuccess;
}

template <class Value>
Status give(Handle handle, Value* value, Value number) {
  if (const Status status = check(handle); status != kSuccess) return status;
  if (value == nullptr) return kInvalidArgument;
  *value = number;
  return kSuccess;
}

Status initialize() {
  ++users;
  return kSuccess;
}

Status no_processes(Handle handle, unsigned* count) { return give(handle, count, 0u); }

}  // namespace
}  // namespace simcuda::nvml

using namespace simcuda;
using namespace simcuda::nvml;

SIMCUDA_EXPORT Status nvmlInit() { return initialize(); }
SIMCUDA_EXPORT Status nvmlInit_v2() { return initialize(); }
SIMCUDA_EXPORT Status nvmlInitWithFlags(unsigned) { return initialize(); }

SIMCUDA_EXPORT Status nvmlShutdown() {
  if (users <= 0) return kUninitialized;
  --users;
  return kSuccess;
}

SIMCUDA_EXPORT const char* nvmlErrorString(int status) {
  switch (status) {
    case kSuccess:
      return "The operation was successful";
    case kUninitialized:
      return "NVML was not first initialized with nvmlInit()";
    case kInvalidArgument:
      return "A supplied argument is invalid";
    case kNotSupported:
      return "The requested operation is not available on target device";
    case kNotFound:
      return "A query to find an object was unsuccessful";
    case kInsufficientSize:
      return "An input argument is not large enough";
    case kArgumentVersionMismatch:
      return "The provided version is invalid/unsupported";
    default:
      return "An internal driver error occurred";
  }
}

// --- The system
SIMCUDA_EXPORT Status nvmlSystemGetDriverVersion(char* text, unsigned length) {
  return users > 0 ? copy_text("580.65.06", text, length) : kUninitialized;  // the first driver of CUDA 13.0
}
SIMCUDA_EXPORT Status nvmlSystemGetNVMLVersion(char* text, unsigned length) {
  return users > 0 ? copy_text("13.580.65.06", text, length) : kUninitialized;
}
SIMCUDA_EXPORT Status nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (users <= 0) return kUninitialized;
  return version != nullptr && cudaDriverGetVersion(version) == cudaSuccess ? kSuccess : kInvalidArgument;
}
SIMCUDA_EXPORT Status nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

SIMCUDA_EXPORT Status nvmlSystemGetProcessName(unsigned pid, char* text, unsigned length) {
  if (users <= 0) return kUninitialized;
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  std::string name;
  if (!std::getline(file, name, '\0')) return kNotFound;
  return copy_text(name.substr(0, length > 0 ? length - 1 : 0), text, length);
}

// --- Devices
SIMCUDA_EXPORT Status nvmlDeviceGetCount_v2(unsigned* count) {
  if (users <= 0) return kUninitialized;
  if (count == nullptr) return kInvalidArgument;
  *count = static_cast<unsigned>(settings().devices);
  return kSuccess;
}
SIMCUDA_EXPORT Status nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

SIMCUDA_EXPORT Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  const Status status = find_device(handle, [&](int device) { return static_cast<unsigned>(device) == index; });
  return status == kNotFound ? kInvalidArgument : status;
}
SIMCUDA_EXPORT Status nvmlDeviceGetHandleByIndex(unsigned index, Handle* handle) {
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

SIMCUDA_EXPORT Status nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
  if (uuid == nullptr) return kInvalidArgument;
  return find_device(handle, [&](int device) { return device_uuid_text(device) == uuid; });
}

SIMCUDA_EXPORT Status nvmlDeviceGetHandleByPciBusId_v2(const char* id, Handle* handle) {
  if (id == nullptr) return kInvalidArgument;
  return find_device(handle, [&](int device) { return is_pci_bus_id(device, id); });
}
SIMCUDA_EXPORT Status nvmlDeviceGetHandleByPciBusId(const char* id, Handle* handle) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, handle);
}

// --- Device properties
SIMCUDA_EXPORT Status nvmlDeviceGetIndex(Handle handle, unsigned* index) {
  return give(handle, index, static_cast<unsigned>(device_of(handle)));
}
SIMCUDA_EXPORT Status nvmlDeviceGetMinorNumber(Handle handle, unsigned* number) {
  return give(handle, number, static_cast<unsigned>(device_of(handle)));
}

SIMCUDA_EXPORT Status nvmlDeviceGetName(Handle handle, char* text, unsigned length) {
  const Status status = check(handle);
  return status == kSuccess ? copy_text(device_name(), text, length) : status;
}

SIMCUDA_EXPORT Status nvmlDeviceGetUUID(Handle handle, char* text, unsigned length) {
  const Status status = check(handle);
  return status == kSuccess ? copy_text(device_uuid_text(device_of(handle)), text, length) : status;
}

SIMCUDA_EXPORT Status nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo* info) { return pci_info(handle, info); }
SIMCUDA_EXPORT Status nvmlDeviceGetPciInfo_v2(Handle handle, PciInfoV2* info) { return pci_info(handle, info); }

SIMCUDA_EXPORT Status nvmlDeviceGetCudaComputeCapability(Handle handle, int* major, int* minor) {
  if (const Status status = check(handle); status != kSuccess) return status;
  if (major == nullptr || minor == nullptr || settings().devices == 0) return kInvalidArgument;
  cudaDeviceProp properties{};
  if (visible_devices().empty() || cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return kNotSupported;
  *major = properties.major;  // all devices are alike
  *minor = properties.minor;
  return kSuccess;
}

SIMCUDA_EXPORT Status nvmlDeviceGetMigMode(Handle handle, unsigned* current, unsigned* pending) {
  const Status status = give(handle, current, 0u);
  return status == kSuccess ? give(handle, pending, 0u) : status;
}

// --- Memory
SIMCUDA_EXPORT Status nvmlDeviceGetMemoryInfo(Handle handle, Memory* memory) {
  if (const Status status = check(handle); status != kSuccess) return status;
  if (memory == nullptr) return kInvalidArgument;
  hang_where_asked();
  const DeviceMemory now = device_memory(device_of(handle));
  *memory = {now.total, now.total - now.used, now.used};
  return kSuccess;
}

SIMCUDA_EXPORT Status nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2* memory) {
  if (const Status status = check(handle); status != kSuccess) return status;
  if (memory == nullptr) return kInvalidArgument;
  hang_where_asked();
  if (memory->version != version<MemoryV2>(2)) return kArgumentVersionMismatch;
  const DeviceMemory now = device_memory(device_of(handle));
  *memory = {memory->version, now.total, 0, now.total - now.used, now.used};
  return kSuccess;
}

SIMCUDA_EXPORT Status nvmlDeviceGetComputeRunningProcesses(Handle handle, unsigned* count, ProcessV1* entries) {
  return list_processes(handle, count, entries);
}
SIMCUDA_EXPORT Status nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned* count, Process* entries) {
  return list_processes(handle, count, entries);
}
SIMCUDA_EXPORT Status nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, Process* entries) {
  return list_processes(handle, count, entries);
}
SIMCUDA_EXPORT Status nvmlDeviceGetGraphicsRunningProcesses(Handle handle, unsigned* count, void*) {
  return no_processes(handle, count);
}
SIMCUDA_EXPORT Status nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned* count, void*) {
  return no_processes(handle, count);
}

// --- An idle device, and no links between devices
SIMCUDA_EXPORT Status nvmlDeviceGetUtilizationRates(Handle handle, Utilization* rates) {
  return give(handle, rates, Utilization{0, 0});
}
SIMCUDA_EXPORT Status nvmlDeviceGetTemperature(Handle handle, int, unsigned* degrees) {
  return give(handle, degrees, 30u);
}
SIMCUDA_EXPORT Status nvmlDeviceGetPowerUsage(Handle handle, unsigned* milliwatts) {
  return give(handle, milliwatts, 70000u);
}
SIMCUDA_EXPORT Status nvmlDeviceGetClockInfo(Handle handle, int, unsigned* megahertz) {
  return give(handle, megahertz, 1980u);
}
SIMCUDA_EXPORT Status nvmlDeviceGetNvLinkState(Handle handle, unsigned, unsigned* active) {
  return give(handle, active, 0u);
}
SIMCUDA_EXPORT Status nvmlDeviceGetNvLinkRemoteDeviceType(Handle handle, unsigned, void*) {
  const Status status = check(handle);
  return status == kSuccess ? kNotSupported : status;
}
SIMCUDA_EXPORT Status nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle handle, unsigned, void*) {
  const Status status = check(handle);
  return status == kSuccess ? kNotSupported : status;
}
// State 0: the device is in no fabric. The structure grows with its version; all other fields are 0.
SIMCUDA_EXPORT Status nvmlDeviceGetGpuFabricInfoV(Handle handle, unsigned* info) {
  if (const Status status = check(handle); status != kSuccess) return status;
  if (info == nullptr) return kInvalidArgument;
  const unsigned size = *info & 0xffffff, number = *info >> 24;
  if (number < 2 || number > 3 || size < 36 || size > 64) return kArgumentVersionMismatch;
  std::memset(info + 1, 0, size - sizeof *info);
  return kSuccess;
}
