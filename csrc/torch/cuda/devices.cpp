#include "devices.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <string>

#include "../../core/format/event_fields.h"
#include "../../python/recording/memory_watch.h"
#include "../../python/recording/session.h"
#include "tracker.h"

namespace alloctrace::torch_side {
namespace {

// Format as NVML and nvidia-smi do.
std::string format_uuid(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

std::string format_pci_address(const cudaDeviceProp& properties) {
  char text[32];
  std::snprintf(text, sizeof text, "%08x:%02x:%02x.0", static_cast<unsigned>(properties.pciDomainID),
                static_cast<unsigned>(properties.pciBusID), static_cast<unsigned>(properties.pciDeviceID));
  return text;
}

// Record the part of the device's `total` bytes that the process may reserve. torch returns it as a fraction.
void record_fraction(native::CUDAAllocator& upstream, c10::DeviceIndex device, std::size_t total) {
  const double fraction = upstream.getMemoryFraction(device);
  Event event{};
  event.kind = EventKind::kMemoryFraction;
  const MemoryFractionFields fields(event);
  fields.fraction = std::bit_cast<std::uint64_t>(fraction);
  fields.limit =
      fraction < 1 ? static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(total))) : kUnknownBytes;
  record_cuda_call(event, {kCudaType, device, 0, 0, 0});
}

}  // namespace

void record_memory_fraction(native::CUDAAllocator& upstream, c10::DeviceIndex device) noexcept {
  if (!cuda_is_traced() || !has_trackers(upstream)) return;
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return;
  try {
    record_fraction(upstream, device, properties.totalGlobalMem);
  } catch (...) {  // torch's allocator is not initialised
  }
}

void record_memory_fractions(native::CUDAAllocator& upstream) noexcept {
  if (!has_trackers(upstream)) return;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return;
  for (int device = 0; device < count; ++device) {
    try {
      const auto index = static_cast<c10::DeviceIndex>(device);
      if (upstream.getMemoryFraction(index) < 1) record_memory_fraction(upstream, index);
    } catch (...) {
      return;  // torch's allocator is not initialised
    }
  }
}

void record_devices() noexcept {
  python::HookScope scope;
  if (!scope) return;
  try {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return;
    for (int device = 0; device < count; ++device) {
      cudaDeviceProp properties{};
      if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
      const std::string uuid = format_uuid(properties.uuid), pci_address = format_pci_address(properties);
      scope.session().recorder.add_device(
          {kCudaType, device, properties.totalGlobalMem, properties.name, uuid, pci_address});
      python::watch_device({kCudaType, device, uuid, pci_address});
      if (c10::cuda::hasPrimaryContext(static_cast<c10::DeviceIndex>(device))) python::note_device_use(device);
    }
  } catch (...) {  // the trace then lacks device names
  }
}

}  // namespace alloctrace::torch_side
