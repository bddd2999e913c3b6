#include "nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <vector>

namespace alloctrace {
namespace {

// Declarations from nvml.h. NVML never changes a structure: a new layout gets a new version number.
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ull;

struct MemoryV1 {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned int kMemoryV2 = static_cast<unsigned int>(sizeof(MemoryV2) | 2u << 24);

struct ProcessInfo {
  unsigned int process_id;
  unsigned long long used;
  unsigned int gpu_instance, compute_instance;
};

}  // namespace

struct Nvml::Functions {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*device_by_uuid)(const char*, Device*) = nullptr;
  int (*device_by_pci)(const char*, Device*) = nullptr;
  int (*memory_v1)(Device, MemoryV1*) = nullptr;
  int (*memory_v2)(Device, MemoryV2*) = nullptr;
  int (*compute_processes)(Device, unsigned int*, ProcessInfo*) = nullptr;
  int (*graphics_processes)(Device, unsigned int*, ProcessInfo*) = nullptr;

  Functions() = default;
  ~Functions() {
    if (library) dlclose(library);
  }
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;

  template <typename Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }
};

Nvml::Nvml(const Functions& functions) : functions_(functions) {}

const Nvml* Nvml::open() {
  static std::atomic<const Nvml*> opened{nullptr};
  static std::atomic<bool> is_missing{false};  // tried once, not at every sample
  if (const Nvml* const existing = opened.load(std::memory_order_acquire)) return existing;
  if (is_missing.exchange(true)) return nullptr;
  auto functions = std::make_unique<Functions>();
  functions->library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!functions->library) return nullptr;
  functions->load(functions->init, "nvmlInit_v2");
  functions->load(functions->device_by_uuid, "nvmlDeviceGetHandleByUUID");
  functions->load(functions->device_by_pci, "nvmlDeviceGetHandleByPciBusId_v2");
  functions->load(functions->memory_v1, "nvmlDeviceGetMemoryInfo");
  functions->load(functions->memory_v2, "nvmlDeviceGetMemoryInfo_v2");
  functions->load(functions->compute_processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  functions->load(functions->graphics_processes, "nvmlDeviceGetGraphicsRunningProcesses_v3");
  if (!functions->init || !functions->memory_v1 || functions->init() != kSuccess) return nullptr;
  std::unique_ptr<const Nvml> created(new Nvml(*functions));
  functions.release();
  opened.store(created.get(), std::memory_order_release);
  return created.release();
}

Nvml::Device Nvml::find(const std::string& uuid, const std::string& pci_address) const {
  Device device = nullptr;
  if (functions_.device_by_uuid && functions_.device_by_uuid(uuid.c_str(), &device) == kSuccess) return device;
  if (functions_.device_by_pci && functions_.device_by_pci(pci_address.c_str(), &device) == kSuccess) return device;
  return nullptr;
}

std::optional<DriverMemory> Nvml::memory(Device device) const {
  DriverMemory result;
  MemoryV2 v2{};
  v2.version = kMemoryV2;
  MemoryV1 v1{};
  if (functions_.memory_v2 && functions_.memory_v2(device, &v2) == kSuccess) {
    result.total = v2.total;
    result.used = v2.used;
  } else if (functions_.memory_v1(device, &v1) == kSuccess) {
    result.total = v1.total;
    result.used = v1.used;
  } else {
    return std::nullopt;
  }
  bool is_listed = false;
  std::uint64_t mine = 0, others = 0;
  for (const auto list : {functions_.compute_processes, functions_.graphics_processes}) {
    if (!list) continue;
    std::vector<ProcessInfo> processes(32);
    auto count = static_cast<unsigned int>(processes.size());
    int error = list(device, &count, processes.data());
    if (error == kInsufficientSize) {
      processes.resize(count + 8);
      count = static_cast<unsigned int>(processes.size());
      error = list(device, &count, processes.data());
    }
    if (error != kSuccess) continue;
    for (unsigned int i = 0; i < count; ++i) {
      if (processes[i].used == kNotAvailable) return result;  // the sum would be wrong
      const bool is_mine = processes[i].process_id == static_cast<unsigned int>(getpid());
      is_listed |= is_mine;
      (is_mine ? mine : others) += processes[i].used;
    }
  }
  // In a container the list has process ids of another namespace, or none: this process's share is then unknown.
  if (is_listed) {
    result.by_this_process = mine;
    result.by_others = others;
  }
  return result;
}

}  // namespace alloctrace
