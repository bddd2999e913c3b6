// NVML's constants and layouts, from NVIDIA's documentation. None of torch's packages has the header.
#pragma once

#include <cstddef>

namespace simcuda::nvml {

enum Status : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kArgumentVersionMismatch = 25,
};

using Handle = struct Device*;

struct Memory {
  unsigned long long total, free, used;
};

struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct PciInfoV2 {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  unsigned reserved[4];
};

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct ProcessV1 {
  unsigned pid;
  unsigned long long used;
};

struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

struct Utilization {
  unsigned gpu, memory;
};

static_assert(sizeof(MemoryV2) == 40 && sizeof(PciInfo) == 68 && sizeof(Process) == 24 && sizeof(PciInfoV2) == 52);

// A structure's version combines its size and a number.
template <class Structure>
constexpr unsigned version(unsigned number) {
  return static_cast<unsigned>(sizeof(Structure)) | (number << 24);
}

}  // namespace simcuda::nvml
