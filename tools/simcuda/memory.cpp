// Device memory: cudaMalloc, cudaFree, and the table of all allocations.
#include "memory.h"

#include <algorithm>
#include <map>
#include <memory>

#include "address_space.h"
#include "device.h"
#include "pools.h"
#include "streams.h"

namespace simcuda {
namespace {

struct Memory {
  std::map<uint64_t, Allocation> allocations;
  std::map<int, FreeRanges> free_addresses;  // by device
  unsigned long long next_id = 1;
};

Memory& memory() {
  static auto* const all = std::make_unique<Memory>().release();
  return *all;
}

FreeRanges& addresses_of(int device) {
  const auto [entry, is_new] = memory().free_addresses.try_emplace(device);
  if (is_new) {
    // More than the capacity: free memory may be fragmented here, where a real device remaps its pages.
    for (const uint64_t factor : {4, 2, 1}) {
      const uint64_t size = round_up(settings().memory * factor, kPage);
      if (const uint64_t start = reserve_addresses(size, kPage); start != 0) {
        entry->second.give(start, size);
        break;
      }
    }
  }
  return entry->second;
}

cudaError_t allocate(void** pointer, uint64_t size) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return error;
  const Lock lock(driver_lock());
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return error;
  if (size == 0) return cudaSuccess;
  const int device = current_device();
  uint64_t address = allocate_pages(device, size);
  if (address == 0) {
    trim_pools_to_nothing(device);  // before it fails, the driver releases unused memory of its pools
    address = allocate_pages(device, size);
  }
  if (address == 0) {
    log_out_of_memory(device, size);
    return cudaErrorMemoryAllocation;
  }
  add_allocation({Allocation::Kind::kDevice, address, size, round_up(size, kPage), device});
  log_event("malloc %d 0x%llx %llu", device, static_cast<unsigned long long>(address),
            static_cast<unsigned long long>(size));
  *pointer = reinterpret_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t deallocate(void* pointer) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return error;
  Lock lock(driver_lock());
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return error;
  if (pointer == nullptr) return cudaSuccess;
  const uint64_t address = address_of(pointer);
  Allocation* found = find_allocation(address);
  if (found == nullptr || found->address != address) return cudaErrorInvalidValue;
  finish_device(lock, found->device);  // cudaFree waits for the device
  found = find_allocation(address);
  if (found == nullptr || found->address != address) return cudaErrorInvalidValue;
  switch (found->kind) {
    case Allocation::Kind::kDevice:
      log_event("free %d 0x%llx %llu", found->device, static_cast<unsigned long long>(address),
                static_cast<unsigned long long>(found->size));
      free_pages(found->device, address, found->reserved);
      break;
    case Allocation::Kind::kPool:
      log_event("free %d 0x%llx %llu", found->device, static_cast<unsigned long long>(address),
                static_cast<unsigned long long>(found->size));
      free_from_pool(address);
      return cudaSuccess;
    case Allocation::Kind::kManaged:
      log_event("free_managed 0x%llx %llu", static_cast<unsigned long long>(address),
                static_cast<unsigned long long>(found->size));
      release_addresses(address, found->reserved);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  remove_allocation(address);
  return cudaSuccess;
}

}  // namespace

Allocation* find_allocation(uint64_t address) {
  auto& all = memory().allocations;
  auto next = all.upper_bound(address);
  if (next == all.begin()) return nullptr;
  Allocation& candidate = std::prev(next)->second;
  return address < candidate.address + std::max<uint64_t>(candidate.size, 1) ? &candidate : nullptr;
}

void add_allocation(Allocation allocation) {
  allocation.id = memory().next_id++;
  memory().allocations[allocation.address] = allocation;
}

void remove_allocation(uint64_t address) {
  const auto found = memory().allocations.find(address);
  if (found == memory().allocations.end()) return;
  forget_content(found->second);
  memory().allocations.erase(found);
}

uint64_t allocate_pages(int device, uint64_t size) {
  const uint64_t reserved = round_up(size, kPage);
  if (reserved < size || !charge(device, reserved)) return 0;
  const uint64_t address = addresses_of(device).take(reserved, kPage);
  if (address != 0 && back_addresses(address, reserved)) return address;
  if (address != 0) addresses_of(device).give(address, reserved);
  discharge(device, reserved);
  return 0;
}

void free_pages(int device, uint64_t address, uint64_t size) {
  const uint64_t reserved = round_up(size, kPage);
  unback_addresses(address, reserved);
  addresses_of(device).give(address, reserved);
  discharge(device, reserved);
}

void log_out_of_memory(int device, uint64_t size) {
  if (!logging()) return;
  log_event("out_of_memory %d %llu %llu", device, static_cast<unsigned long long>(size),
            static_cast<unsigned long long>(free_memory(device)));
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaMalloc(void** pointer, size_t size) { return result(allocate(pointer, size)); }
SIMCUDA_EXPORT cudaError_t cudaFree(void* pointer) { return result(deallocate(pointer)); }

SIMCUDA_EXPORT cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  if (pitch == nullptr) return result(cudaErrorInvalidValue);
  *pitch = round_up(width, 512);
  return result(allocate(pointer, *pitch * height));
}

// Managed memory lives on the host here, so it does not count towards a device's capacity.
SIMCUDA_EXPORT cudaError_t cudaMallocManaged(void** pointer, size_t size, unsigned flags) {
  if (pointer == nullptr || size == 0) return result(cudaErrorInvalidValue);
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return result(error);
  const Lock lock(driver_lock());
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return result(error);
  const uint64_t reserved = round_up(size, kPage);
  const uint64_t address = reserve_addresses(reserved, kPage);
  if (address == 0 || !back_addresses(address, reserved)) return result(cudaErrorMemoryAllocation);
  add_allocation({Allocation::Kind::kManaged, address, size, reserved, current_device(), flags});
  log_event("malloc_managed 0x%llx %zu", static_cast<unsigned long long>(address), size);
  *pointer = reinterpret_cast<void*>(address);
  return cudaSuccess;
}
