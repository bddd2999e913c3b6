// What the NVIDIA driver says of the memory of its devices, asked through NVML, its management library. Makes no CUDA
// call, so it initialises nothing and disturbs no stream. The library is looked up at run time: there is none without a
// driver. Any call may hang in the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace alloctrace {

struct DriverMemory {
  std::uint64_t total = 0;
  std::uint64_t used = 0;  // by everyone; without what the driver reserves for itself, where NVML separates it
  // By this process and by others, where NVML reports it: not in most containers, nor under Windows' driver model.
  std::optional<std::uint64_t> by_this_process, by_others;
};

class Nvml {
 public:
  using Device = void*;

  // Opened by the first call that succeeds, and never closed: a call that hangs must not lose the library under it.
  // nullptr where there is no NVML, or it does not start. One caller at a time.
  static const Nvml* open();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // By UUID, else by PCI address (both as nvidia-smi writes them). Never by index: CUDA_VISIBLE_DEVICES
  // renumbers CUDA's devices. nullptr where NVML knows neither.
  Device find(const std::string& uuid, const std::string& pci_address) const;
  std::optional<DriverMemory> memory(Device device) const;

 private:
  struct Functions;
  explicit Nvml(const Functions& functions);
  const Functions& functions_;
};

}  // namespace alloctrace
