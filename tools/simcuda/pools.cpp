// cudaMallocAsync: memory pools that grow in chunks, cache freed memory, and release it beyond a threshold.
#include "pools.h"

#include <algorithm>
#include <map>
#include <memory>

#include "address_space.h"
#include "device.h"
#include "graphs.h"
#include "memory.h"
#include "streams.h"

namespace simcuda {
namespace {

constexpr uint64_t kChunk = 32 * MiB;
constexpr uint64_t kPoolAlignment = 512;

struct PendingFree {
  uint64_t address;
  uint64_t size;
  StreamPointer stream;
};

struct Pool {
  int device = 0;
  uint64_t release_threshold = 0;
  uint64_t reserved = 0, reserved_high = 0;
  uint64_t used = 0, used_high = 0;
  int reuse_follow_event = 1, reuse_opportunistic = 1, reuse_internal = 1;
  FreeRanges free;
  std::map<uint64_t, uint64_t> chunks;
  std::vector<PendingFree> pending;  // frees that a stream has not reached yet
};

struct Pools {
  std::map<cudaMemPool_t, std::shared_ptr<Pool>> all;
  std::map<int, std::shared_ptr<Pool>> defaults;  // by device
  std::map<int, cudaMemPool_t> current;
  std::map<uint64_t, std::shared_ptr<Pool>> owners;  // by allocated address
};

Pools& pools() {
  static auto* const all = std::make_unique<Pools>().release();
  return *all;
}

cudaMemPool_t handle_of(const std::shared_ptr<Pool>& pool) { return reinterpret_cast<cudaMemPool_t>(pool.get()); }

std::shared_ptr<Pool> make_pool(int device) {
  auto pool = std::make_shared<Pool>();
  pool->device = device;
  pools().all[handle_of(pool)] = pool;
  return pool;
}

std::shared_ptr<Pool> default_pool(int device) {
  auto& pool = pools().defaults[device];
  if (pool == nullptr) pool = make_pool(device);
  return pool;
}

std::shared_ptr<Pool> find_pool(cudaMemPool_t handle) {
  const auto found = pools().all.find(handle);
  return found == pools().all.end() ? nullptr : found->second;
}

std::shared_ptr<Pool> current_pool(int device) {
  const auto chosen = pools().current.find(device);
  const auto pool = chosen == pools().current.end() ? nullptr : find_pool(chosen->second);
  return pool != nullptr ? pool : default_pool(device);
}

void release_chunk(Pool& pool, uint64_t start, uint64_t size) {
  log_event("pool_release %d 0x%llx %llu", pool.device, static_cast<unsigned long long>(start),
            static_cast<unsigned long long>(size));
  pool.free.take_at(start, size);
  pool.chunks.erase(start);
  pool.reserved -= size;
  free_pages(pool.device, start, size);
}

void trim(Pool& pool, uint64_t keep) {
  const std::map<uint64_t, uint64_t> chunks = pool.chunks;
  for (const auto& [start, size] : chunks) {
    if (pool.reserved <= keep) return;
    const auto& ranges = pool.free.ranges();
    const auto next = ranges.upper_bound(start);
    if (next == ranges.begin()) continue;
    const auto range = std::prev(next);
    if (range->first + range->second >= start + size) release_chunk(pool, start, size);
  }
}

bool grow(Pool& pool, uint64_t size) {
  for (const uint64_t unit : {kChunk, kPage}) {
    const uint64_t chunk = round_up(size, unit);
    const uint64_t start = allocate_pages(pool.device, chunk);
    if (start == 0) continue;
    log_event("pool_reserve %d 0x%llx %llu", pool.device, static_cast<unsigned long long>(start),
              static_cast<unsigned long long>(chunk));
    pool.chunks[start] = chunk;
    pool.free.give(start, chunk);
    pool.reserved += chunk;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return true;
  }
  return false;
}

// A stream may reuse memory at once that was freed in its own order.
uint64_t reuse_pending(Pool& pool, const StreamPointer& stream, uint64_t size) {
  const auto found = std::find_if(pool.pending.begin(), pool.pending.end(), [&](const PendingFree& freed) {
    return freed.stream == stream && freed.size >= size;
  });
  if (found == pool.pending.end()) return 0;
  const PendingFree freed = *found;
  pool.pending.erase(found);
  if (freed.size > size) pool.pending.push_back({freed.address + size, freed.size - size, stream});
  return freed.address;
}

uint64_t take(Pool& pool, const StreamPointer& stream, uint64_t size) {
  if (const uint64_t address = reuse_pending(pool, stream, size); address != 0) return address;
  if (const uint64_t address = pool.free.take(size, kPoolAlignment); address != 0) return address;
  if (!grow(pool, size)) {
    trim_pools_to_nothing(pool.device);
    if (!grow(pool, size)) return 0;
  }
  return pool.free.take(size, kPoolAlignment);
}

// The range becomes free for all streams when this stream reaches the free.
void give_in_order(const std::shared_ptr<Pool>& pool, const StreamPointer& stream, uint64_t address, uint64_t size) {
  if (idle(stream)) {
    pool->free.give(address, size);
    return;
  }
  pool->pending.push_back({address, size, stream});
  enqueue(stream, {Operation::Kind::kAction, nullptr, [pool, stream, address, size] {
                     // Memory that the stream has reused since is no longer in the list.
                     auto& pending = pool->pending;
                     for (auto freed = pending.begin(); freed != pending.end();) {
                       const bool inside = freed->stream == stream && freed->address >= address &&
                                           freed->address + freed->size <= address + size;
                       if (inside) pool->free.give(freed->address, freed->size);
                       freed = inside ? pending.erase(freed) : freed + 1;
                     }
                   }});
}

void retire(uint64_t address, Allocation& allocation, Pool& pool) {
  pool.used -= allocation.reserved;
  pools().owners.erase(address);
  remove_allocation(address);
}

cudaError_t add_memory_node(const StreamPointer& stream, cudaGraphNodeType type) {
  auto node = std::make_shared<Node>();
  node->type = type;
  capture_node(stream, std::move(node));
  return cudaSuccess;
}

cudaError_t allocate(void** pointer, uint64_t size, cudaMemPool_t wanted, cudaStream_t stream_handle) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return error;
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(stream_handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_implicit_dependency(stream); error != cudaSuccess) return error;
  if (stream->capture != nullptr && stream->capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  const auto pool = wanted == nullptr ? current_pool(stream->device) : find_pool(wanted);
  if (pool == nullptr) return cudaErrorInvalidValue;
  if (size == 0) return cudaSuccess;
  const uint64_t reserved = round_up(size, kPoolAlignment);
  const uint64_t address = take(*pool, stream, reserved);
  if (address == 0) {
    log_out_of_memory(pool->device, size);
    return cudaErrorMemoryAllocation;
  }
  pool->used += reserved;
  pool->used_high = std::max(pool->used_high, pool->used);
  pools().owners[address] = pool;
  add_allocation({Allocation::Kind::kPool, address, size, reserved, pool->device});
  log_event("malloc_async %d 0x%llx %llu 0x%llx", pool->device, static_cast<unsigned long long>(address),
            static_cast<unsigned long long>(size), static_cast<unsigned long long>(address_of(stream_handle)));
  *pointer = reinterpret_cast<void*>(address);
  return stream->capture != nullptr ? add_memory_node(stream, cudaGraphNodeTypeMemAlloc) : cudaSuccess;
}

cudaError_t deallocate(void* pointer, cudaStream_t stream_handle) {
  if (const cudaError_t error = use_current_device(); error != cudaSuccess) return error;
  const Lock lock(driver_lock());
  const StreamPointer stream = find_stream(stream_handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_implicit_dependency(stream); error != cudaSuccess) return error;
  if (stream->capture != nullptr && stream->capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  if (pointer == nullptr) return cudaSuccess;
  const uint64_t address = address_of(pointer);
  const auto owner = pools().owners.find(address);
  if (owner == pools().owners.end()) return cudaErrorInvalidValue;
  const std::shared_ptr<Pool> pool = owner->second;
  Allocation& allocation = *find_allocation(address);
  const uint64_t reserved = allocation.reserved;
  log_event("free_async %d 0x%llx %llu 0x%llx", pool->device, static_cast<unsigned long long>(address),
            static_cast<unsigned long long>(allocation.size),
            static_cast<unsigned long long>(address_of(stream_handle)));
  retire(address, allocation, *pool);
  if (stream->capture == nullptr) {
    give_in_order(pool, stream, address, reserved);
    return cudaSuccess;
  }
  // A replay writes there again: the address belongs to the graph until its last copy is destroyed.
  keep_with_graph(*stream->capture, std::shared_ptr<void>(nullptr, [pool, address, reserved](void*) {
    const Lock guard(driver_lock());
    pool->free.give(address, reserved);
  }));
  return add_memory_node(stream, cudaGraphNodeTypeMemFree);
}

}  // namespace

void trim_pools(int device) {
  for (const auto& [handle, pool] : pools().all) {
    if (pool->device == device) trim(*pool, pool->release_threshold);
  }
}

void trim_pools_to_nothing(int device) {
  for (const auto& [handle, pool] : pools().all) {
    if (pool->device == device) trim(*pool, 0);
  }
}

void free_from_pool(uint64_t address) {
  const std::shared_ptr<Pool> pool = pools().owners.at(address);
  Allocation& allocation = *find_allocation(address);
  const uint64_t reserved = allocation.reserved;
  retire(address, allocation, *pool);
  pool->free.give(address, reserved);
  trim(*pool, pool->release_threshold);
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaMallocAsync(void** pointer, size_t size, cudaStream_t stream) {
  return result(allocate(pointer, size, nullptr, stream));
}

SIMCUDA_EXPORT cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t size, cudaMemPool_t pool,
                                                   cudaStream_t stream) {
  return result(allocate(pointer, size, pool, stream));
}

SIMCUDA_EXPORT cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return result(deallocate(pointer, stream));
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* handle, int ordinal) {
  const int device = device_of_ordinal(ordinal);
  if (device < 0) return result(cudaErrorInvalidDevice);
  const Lock lock(driver_lock());
  *handle = handle_of(default_pool(device));
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* handle, int ordinal) {
  const int device = device_of_ordinal(ordinal);
  if (device < 0) return result(cudaErrorInvalidDevice);
  const Lock lock(driver_lock());
  *handle = handle_of(current_pool(device));
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaDeviceSetMemPool(int ordinal, cudaMemPool_t handle) {
  const int device = device_of_ordinal(ordinal);
  if (device < 0) return result(cudaErrorInvalidDevice);
  const Lock lock(driver_lock());
  const auto pool = find_pool(handle);
  if (pool == nullptr || pool->device != device) return result(cudaErrorInvalidValue);
  pools().current[device] = handle;
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t* handle, const cudaMemPoolProps* properties) {
  if (handle == nullptr || properties == nullptr || properties->allocType != cudaMemAllocationTypePinned ||
      properties->location.type != cudaMemLocationTypeDevice) {
    return result(cudaErrorInvalidValue);
  }
  const int device = device_of_ordinal(properties->location.id);
  if (device < 0) return result(cudaErrorInvalidDevice);
  const Lock lock(driver_lock());
  *handle = handle_of(make_pool(device));
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  const Lock lock(driver_lock());
  const auto pool = find_pool(handle);
  if (pool == nullptr || pool == default_pool(pool->device)) return result(cudaErrorInvalidValue);
  trim(*pool, 0);
  // Outstanding allocations keep the pool alive; it is trimmed with the last free.
  pool->release_threshold = 0;
  if (pool->chunks.empty()) pools().all.erase(handle);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t keep) {
  const Lock lock(driver_lock());
  const auto pool = find_pool(handle);
  if (pool == nullptr) return result(cudaErrorInvalidValue);
  trim(*pool, keep);
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  const Lock lock(driver_lock());
  const auto pool = find_pool(handle);
  if (pool == nullptr || value == nullptr) return result(cudaErrorInvalidValue);
  const auto number = [&](int of) { *static_cast<int*>(value) = of; };
  const auto bytes = [&](uint64_t of) { *static_cast<uint64_t*>(value) = of; };
  switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
      number(pool->reuse_follow_event);
      break;
    case cudaMemPoolReuseAllowOpportunistic:
      number(pool->reuse_opportunistic);
      break;
    case cudaMemPoolReuseAllowInternalDependencies:
      number(pool->reuse_internal);
      break;
    case cudaMemPoolAttrReleaseThreshold:
      bytes(pool->release_threshold);
      break;
    case cudaMemPoolAttrReservedMemCurrent:
      bytes(pool->reserved);
      break;
    case cudaMemPoolAttrReservedMemHigh:
      bytes(pool->reserved_high);
      break;
    case cudaMemPoolAttrUsedMemCurrent:
      bytes(pool->used);
      break;
    case cudaMemPoolAttrUsedMemHigh:
      bytes(pool->used_high);
      break;
    default:
      return result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  const Lock lock(driver_lock());
  const auto pool = find_pool(handle);
  if (pool == nullptr || value == nullptr) return result(cudaErrorInvalidValue);
  switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
      pool->reuse_follow_event = *static_cast<int*>(value);
      break;
    case cudaMemPoolReuseAllowOpportunistic:
      pool->reuse_opportunistic = *static_cast<int*>(value);
      break;
    case cudaMemPoolReuseAllowInternalDependencies:
      pool->reuse_internal = *static_cast<int*>(value);
      break;
    case cudaMemPoolAttrReleaseThreshold:
      pool->release_threshold = *static_cast<uint64_t*>(value);
      break;
    // The peaks can only be reset to the current values.
    case cudaMemPoolAttrReservedMemHigh:
      if (*static_cast<uint64_t*>(value) != 0) return result(cudaErrorInvalidValue);
      pool->reserved_high = pool->reserved;
      break;
    case cudaMemPoolAttrUsedMemHigh:
      if (*static_cast<uint64_t*>(value) != 0) return result(cudaErrorInvalidValue);
      pool->used_high = pool->used;
      break;
    default:
      return result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

// Here, all devices can access each other's memory.
SIMCUDA_EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc*, size_t) {
  const Lock lock(driver_lock());
  return result(find_pool(handle) != nullptr ? cudaSuccess : cudaErrorInvalidValue);
}
