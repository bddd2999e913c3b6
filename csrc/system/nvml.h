// GPU memory as the NVIDIA driver reports it through its library NVML. Makes no CUDA call, so it initialises no context
// and disturbs no stream. Loaded at run time: without a driver there is no library. Any call may hang.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace alloctrace {

struct DriverMemory {
  std::uint64_t total = 0;
  std::uint64_t used = 0;  // by all processes; without the driver's own memory where NVML reports that
  // By this process and by others; absent in most containers and under the Windows driver model.
  std::optional<std::uint64_t> by_this_process, by_others;
};

class Nvml {
 public:
  using Device = void*;

  // Return the library, opened by the first successful call and never closed, so that a hanging call keeps its code.
  // Return nullptr if NVML is absent or fails to start. One caller at a time.
  static const Nvml* open();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Return the device by UUID, else by PCI address, or nullptr. Not by index: CUDA_VISIBLE_DEVICES renumbers devices.
  Device find(const std::string& uuid, const std::string& pci_address) const;
  std::optional<DriverMemory> memory(Device device) const;

 private:
  struct Functions;
  explicit Nvml(const Functions& functions);
  const Functions& functions_;
};

}  // namespace alloctrace
