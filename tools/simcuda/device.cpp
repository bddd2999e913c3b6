// Devices: the visible ones, the current one, contexts and accounting. Their properties are in properties.cpp.
#include "device.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

namespace simcuda {
namespace {

struct Device {
  bool has_context = false;
  uint64_t allocated = 0;  // without the context
  std::set<int> peers;     // devices whose memory this one may use
};

std::vector<Device>& devices() {
  static auto* const all =
      std::make_unique<std::vector<Device>>(settings().devices).release();  // outlives static destructors
  return *all;
}

thread_local int current_ordinal = 0;

// As CUDA does, refuse all work in a child of a process that has used CUDA. Programs that would hang or crash on a real
// device fail here too.
std::atomic<bool> used{false};
std::atomic<bool> forked_after_use{false};

std::vector<int> read_visible_devices() {
  std::vector<int> visible;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int device = 0; device < settings().devices; ++device) visible.push_back(device);
    return visible;
  }
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    item.erase(0, item.find_first_not_of(' '));
    int device = -1;
    if (item.rfind("GPU-", 0) == 0) {
      for (int candidate = 0; candidate < settings().devices; ++candidate) {
        if (device_uuid_text(candidate).rfind(item, 0) == 0) device = candidate;
      }
    } else if (!item.empty() && std::isdigit(static_cast<unsigned char>(item[0]))) {
      device = std::atoi(item.c_str());
    }
    // As in the driver: the list ends at the first entry that names no device, and naming a device twice voids it.
    if (device < 0 || device >= settings().devices) break;
    if (std::find(visible.begin(), visible.end(), device) != visible.end()) return {};
    visible.push_back(device);
  }
  return visible;
}

void first_query() {
  static const bool done = [] {
    pthread_atfork(nullptr, nullptr, [] {
      if (used) forked_after_use = true;
    });
    return true;
  }();
  (void)done;
}

uint64_t others(int device) { return memory_used_by_others != nullptr ? memory_used_by_others(device) : 0; }

uint64_t used_by_process(const Device& device) {
  return device.allocated + (device.has_context ? settings().context : 0);
}

}  // namespace

const std::vector<int>& visible_devices() {
  static auto* const visible = std::make_unique<std::vector<int>>(read_visible_devices()).release();
  return *visible;
}

int device_of_ordinal(int ordinal) {
  const auto& visible = visible_devices();
  return ordinal >= 0 && ordinal < static_cast<int>(visible.size()) ? visible[ordinal] : -1;
}

int ordinal_of_device(int device) {
  const auto& visible = visible_devices();
  const auto found = std::find(visible.begin(), visible.end(), device);
  return found == visible.end() ? -1 : static_cast<int>(found - visible.begin());
}

int current_device() { return device_of_ordinal(current_ordinal); }
void set_current_device(int device) { current_ordinal = std::max(0, ordinal_of_device(device)); }

cudaError_t use_device(int device) {
  first_query();
  if (forked_after_use) return cudaErrorInitializationError;
  if (visible_devices().empty()) return cudaErrorNoDevice;
  if (device < 0 || device >= settings().devices) return cudaErrorInvalidDevice;
  const Lock lock(driver_lock());
  Device& state = devices()[device];
  if (state.has_context) return cudaSuccess;
  if (state.allocated + settings().context + others(device) > settings().memory) return cudaErrorMemoryAllocation;
  state.has_context = true;
  used = true;
  log_event("context %d %llu", device, static_cast<unsigned long long>(settings().context));
  return cudaSuccess;
}

cudaError_t use_current_device() { return use_device(current_device()); }

uint64_t free_memory(int device) {
  const uint64_t taken = used_by_process(devices()[device]) + others(device);
  return taken < settings().memory ? settings().memory - taken : 0;
}

bool charge(int device, uint64_t bytes) {
  if (bytes > free_memory(device)) return false;
  devices()[device].allocated += bytes;
  return true;
}

void discharge(int device, uint64_t bytes) { devices()[device].allocated -= bytes; }

bool has_context(int device) {
  const Lock lock(driver_lock());
  return devices()[device].has_context;
}

DeviceMemory device_memory(int device) {
  const uint64_t outside = others(device);
  const Lock lock(driver_lock());
  const uint64_t own = used_by_process(devices()[device]);
  return {settings().memory, std::min(settings().memory, own + outside), own};
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return result(cudaErrorInvalidValue);
  first_query();
  *count = 0;
  if (forked_after_use) return result(cudaErrorInitializationError);
  *count = static_cast<int>(visible_devices().size());
  return result(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

SIMCUDA_EXPORT cudaError_t cudaGetDevice(int* ordinal) {
  if (ordinal == nullptr) return result(cudaErrorInvalidValue);
  first_query();
  if (forked_after_use) return result(cudaErrorInitializationError);
  if (visible_devices().empty()) return result(cudaErrorNoDevice);
  *ordinal = current_ordinal;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaSetDevice(int ordinal) {
  const int device = device_of_ordinal(ordinal);
  if (const cudaError_t error = use_device(device); error != cudaSuccess) return result(error);
  current_ordinal = ordinal;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaInitDevice(int ordinal, unsigned, unsigned) {
  return result(use_device(device_of_ordinal(ordinal)));
}

SIMCUDA_EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  if (device_of_ordinal(ordinal) < 0 || device_of_ordinal(peer) < 0) return result(cudaErrorInvalidDevice);
  *can = ordinal != peer;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer_ordinal, unsigned flags) {
  const int device = current_device();
  const int peer = device_of_ordinal(peer_ordinal);
  if (peer < 0 || peer == device) return result(cudaErrorInvalidDevice);
  if (flags != 0) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = use_device(device); error != cudaSuccess) return result(error);
  if (const cudaError_t error = use_device(peer); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  return result(devices()[device].peers.insert(peer).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled);
}

SIMCUDA_EXPORT cudaError_t cudaDeviceDisablePeerAccess(int peer_ordinal) {
  const int peer = device_of_ordinal(peer_ordinal);
  if (peer < 0) return result(cudaErrorInvalidDevice);
  const Lock lock(driver_lock());
  return result(devices()[current_device()].peers.erase(peer) > 0 ? cudaSuccess : cudaErrorPeerAccessNotEnabled);
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int ordinal, int peer) {
  if (device_of_ordinal(ordinal) < 0 || device_of_ordinal(peer) < 0) return result(cudaErrorInvalidDevice);
  *value = ordinal != peer && attribute != cudaDevP2PAttrPerformanceRank;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int ordinal) {
  const int device = device_of_ordinal(ordinal);
  if (device < 0) return result(cudaErrorInvalidDevice);
  if (text == nullptr || length < 13) return result(cudaErrorInvalidValue);
  // The runtime writes a domain of four digits where NVML writes eight.
  std::snprintf(text, static_cast<size_t>(length), "%s", device_pci_bus_id(device).substr(4).c_str());
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int* ordinal, const char* text) {
  const std::string wanted = text == nullptr ? "" : text;
  for (size_t index = 0; index < visible_devices().size(); ++index) {
    const std::string id = device_pci_bus_id(visible_devices()[index]);
    if (wanted == id || wanted == id.substr(4)) {
      *ordinal = static_cast<int>(index);
      return cudaSuccess;
    }
  }
  return result(cudaErrorInvalidValue);
}

SIMCUDA_EXPORT cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  if (available == nullptr || total == nullptr) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const DeviceMemory memory = device_memory(current_device());
  *total = memory.total;
  *available = memory.total - memory.used;
  return cudaSuccess;
}
