// The driver's virtual memory calls, on which expandable segments are built: addresses and physical memory are
// separate.
#include <algorithm>
#include <map>
#include <memory>

#include "address_space.h"
#include "device.h"
#include "memory.h"
#include "streams.h"

namespace simcuda {
namespace {

using Handle = CUmemGenericAllocationHandle;

struct Physical {
  int device;
  uint64_t size;
  CUmemAllocationProp properties;
  int references = 1;  // held by the program
  int mappings = 0;    // memory is freed when references and mappings are 0
};

struct Mapping {
  uint64_t size;
  Handle handle;
  int device;
};

struct VirtualMemory {
  std::map<uint64_t, uint64_t> reservations;
  std::map<uint64_t, Mapping> mappings;
  std::map<Handle, Physical> physical;
  Handle next_handle = 0x51a00001;
};

VirtualMemory& state() {
  static auto* const all = std::make_unique<VirtualMemory>().release();
  return *all;
}

void release_if_unused(std::map<Handle, Physical>::iterator entry) {
  if (entry->second.references > 0 || entry->second.mappings > 0) return;
  log_event("destroy %d 0x%llx %llu", entry->second.device, entry->first,
            static_cast<unsigned long long>(entry->second.size));
  discharge(entry->second.device, entry->second.size);
  state().physical.erase(entry);
}

bool inside_reservation(uint64_t address, uint64_t size) {
  const auto next = state().reservations.upper_bound(address);
  if (next == state().reservations.begin()) return false;
  const auto& [start, length] = *std::prev(next);
  return address + size <= start + length;
}

bool overlaps_mapping(uint64_t address, uint64_t size) {
  const auto next = state().mappings.lower_bound(address);
  if (next != state().mappings.end() && next->first < address + size) return true;
  if (next == state().mappings.begin()) return false;
  const auto& [start, mapping] = *std::prev(next);
  return start + mapping.size > address;
}

// Calls f on each mapping of the range; returns false if the range contains partial mappings.
template <typename Function>
bool for_each_mapping(uint64_t address, uint64_t size, Function&& f) {
  const uint64_t end = address + size;
  for (uint64_t at = address; at < end;) {
    const auto found = state().mappings.find(at);
    if (found == state().mappings.end() || at + found->second.size > end) return false;
    at += found->second.size;
  }
  for (uint64_t at = address; at < end;) {
    const auto found = state().mappings.find(at);
    at += found->second.size;
    f(found);
  }
  return true;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                                      CUmemAllocationGranularity_flags) {
  if (granularity == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kPage;
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr,
                                            unsigned long long) {
  if (address == nullptr || size == 0 || size % kPage != 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t start = reserve_addresses(size, std::max<uint64_t>(alignment, kPage));
  if (start == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const Lock lock(driver_lock());
  state().reservations[start] = size;
  log_event("reserve 0x%llx %zu", static_cast<unsigned long long>(start), size);
  *address = start;
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  const Lock lock(driver_lock());
  const auto found = state().reservations.find(address);
  if (found == state().reservations.end() || found->second != size || overlaps_mapping(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  state().reservations.erase(found);
  release_addresses(address, size);
  log_event("unreserve 0x%llx %zu", address, size);
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuMemCreate(Handle* handle, size_t size, const CUmemAllocationProp* properties,
                                    unsigned long long) {
  if (handle == nullptr || properties == nullptr || size == 0 || size % kPage != 0) return CUDA_ERROR_INVALID_VALUE;
  if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const int device = device_of_ordinal(properties->location.id);
  if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
  if (const cudaError_t error = use_device(device); error != cudaSuccess) return driver_result(error);
  const Lock lock(driver_lock());
  if (!charge(device, size)) {
    log_out_of_memory(device, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = state().next_handle++;
  state().physical[*handle] = {device, size, *properties};
  log_event("create %d 0x%llx %zu", device, *handle, size);
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuMemRelease(Handle handle) {
  const Lock lock(driver_lock());
  const auto found = state().physical.find(handle);
  if (found == state().physical.end() || found->second.references == 0) return CUDA_ERROR_INVALID_VALUE;
  log_event("release %d 0x%llx %llu", found->second.device, handle,
            static_cast<unsigned long long>(found->second.size));
  --found->second.references;
  release_if_unused(found);
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, Handle handle,
                                 unsigned long long flags) {
  const Lock lock(driver_lock());
  const auto found = state().physical.find(handle);
  if (found == state().physical.end() || flags != 0 || offset != 0 || size != found->second.size ||
      address % kPage != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!inside_reservation(address, size) || overlaps_mapping(address, size)) return CUDA_ERROR_INVALID_VALUE;
  if (!back_addresses(address, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  ++found->second.mappings;
  state().mappings[address] = {size, handle, found->second.device};
  add_allocation({Allocation::Kind::kMapped, address, size, size, found->second.device});
  log_event("map %d 0x%llx %zu 0x%llx", found->second.device, address, size, handle);
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  const Lock lock(driver_lock());
  const bool whole = for_each_mapping(address, size, [](auto entry) {
    const auto [start, mapping] = *entry;
    log_event("unmap %d 0x%llx %llu 0x%llx", mapping.device, static_cast<unsigned long long>(start),
              static_cast<unsigned long long>(mapping.size), mapping.handle);
    unback_addresses(start, mapping.size);
    remove_allocation(start);
    state().mappings.erase(entry);
    const auto physical = state().physical.find(mapping.handle);
    --physical->second.mappings;
    release_if_unused(physical);
  });
  return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIMCUDA_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count) {
  const Lock lock(driver_lock());
  if (access == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  return for_each_mapping(address, size, [](auto) {}) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIMCUDA_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, Handle handle) {
  const Lock lock(driver_lock());
  const auto found = state().physical.find(handle);
  if (properties == nullptr || found == state().physical.end()) return CUDA_ERROR_INVALID_VALUE;
  *properties = found->second.properties;
  return CUDA_SUCCESS;
}

SIMCUDA_EXPORT CUresult cuMemRetainAllocationHandle(Handle* handle, void* pointer) {
  const Lock lock(driver_lock());
  const auto next = state().mappings.upper_bound(address_of(pointer));
  if (handle == nullptr || next == state().mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
  const auto& [start, mapping] = *std::prev(next);
  if (address_of(pointer) >= start + mapping.size) return CUDA_ERROR_INVALID_VALUE;
  *handle = mapping.handle;
  ++state().physical.at(mapping.handle).references;
  return CUDA_SUCCESS;
}
