// Pinned host memory and pointer attributes.
#include <cstring>
#include <memory>

#include "address_space.h"
#include "device.h"
#include "memory.h"
#include "streams.h"

namespace simcuda {
namespace {

cudaError_t allocate_host(void** pointer, uint64_t size, unsigned flags) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return error;
  const Lock lock(driver_lock());
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return error;
  if (size == 0) return cudaSuccess;
  const uint64_t reserved = round_up(size, 64 * KiB);
  const uint64_t address = reserve_addresses(reserved, 64 * KiB);
  if (address == 0 || !back_addresses(address, reserved)) return cudaErrorMemoryAllocation;
  add_allocation({Allocation::Kind::kHost, address, size, reserved, current_device(), flags});
  log_event("host_alloc 0x%llx %llu", static_cast<unsigned long long>(address), static_cast<unsigned long long>(size));
  *pointer = reinterpret_cast<void*>(address);
  return cudaSuccess;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;
using Kind = Allocation::Kind;

SIMCUDA_EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned flags) {
  return result(allocate_host(pointer, size, flags));
}

SIMCUDA_EXPORT cudaError_t cudaMallocHost(void** pointer, size_t size) {
  return result(allocate_host(pointer, size, 0));
}

SIMCUDA_EXPORT cudaError_t cudaFreeHost(void* pointer) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return result(error);
  if (pointer == nullptr) return cudaSuccess;
  const Allocation* found = find_allocation(address_of(pointer));
  if (found == nullptr || found->kind != Kind::kHost || found->address != address_of(pointer)) {
    return result(cudaErrorInvalidValue);
  }
  log_event("host_free 0x%llx %llu", static_cast<unsigned long long>(found->address),
            static_cast<unsigned long long>(found->size));
  release_addresses(found->address, found->reserved);
  remove_allocation(address_of(pointer));
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned flags) {
  if (pointer == nullptr || size == 0) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return result(error);
  const uint64_t address = address_of(pointer);
  if (find_allocation(address) != nullptr || find_allocation(address + size - 1) != nullptr) {
    return result(cudaErrorHostMemoryAlreadyRegistered);
  }
  add_allocation({Kind::kRegistered, address, size, size, current_device(), flags});
  log_event("host_register 0x%llx %zu", static_cast<unsigned long long>(address), size);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaHostUnregister(void* pointer) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return result(error);
  const Allocation* found = find_allocation(address_of(pointer));
  if (found == nullptr || found->kind != Kind::kRegistered || found->address != address_of(pointer)) {
    return result(cudaErrorHostMemoryNotRegistered);
  }
  log_event("host_unregister 0x%llx %llu", static_cast<unsigned long long>(found->address),
            static_cast<unsigned long long>(found->size));
  remove_allocation(address_of(pointer));
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* pointer, unsigned) {
  const Lock lock(driver_lock());
  const Allocation* found = find_allocation(address_of(pointer));
  if (device_pointer == nullptr || found == nullptr || found->on_device()) return result(cudaErrorInvalidValue);
  *device_pointer = pointer;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaHostGetFlags(unsigned* flags, void* pointer) {
  const Lock lock(driver_lock());
  const Allocation* found = find_allocation(address_of(pointer));
  if (flags == nullptr || found == nullptr || (found->kind != Kind::kHost && found->kind != Kind::kRegistered)) {
    return result(cudaErrorInvalidValue);
  }
  *flags = found->flags | cudaHostAllocMapped;  // all pinned memory can be reached from the device
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (attributes == nullptr) return result(cudaErrorInvalidValue);
  *attributes = {};
  const Lock lock(driver_lock());
  const Allocation* found = find_allocation(address_of(pointer));
  if (found == nullptr) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  attributes->device = ordinal_of_device(found->device);
  attributes->devicePointer = const_cast<void*>(pointer);
  if (found->on_device()) {
    attributes->type = cudaMemoryTypeDevice;
    return cudaSuccess;
  }
  attributes->type = found->kind == Kind::kManaged ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
  attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}
