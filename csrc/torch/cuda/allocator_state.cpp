#include "allocator_state.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <set>
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

StateByDevice read_state(native::CUDAAllocator& allocator) {
  native::SnapshotInfo snapshot = read_snapshot(allocator);
  StateByDevice state(snapshot.device_traces.size());  // one entry per device, even without traces
  for (native::SegmentInfo& segment : snapshot.segments) {
    const auto device = static_cast<std::size_t>(segment.device);
    if (device >= state.size()) state.resize(device + 1);
    state[device].push_back(std::move(segment));
  }
  return state;
}

std::vector<DevicePool> released_pools(native::CUDAAllocator& allocator, const StateByDevice& state) {
  std::set<DevicePool> pools;
  for (std::size_t device = 0; device < state.size(); ++device) {
    for (const native::SegmentInfo& segment : state[device]) {
      const auto& pool = segment.owner_private_pool_id;
      if (pool.first != 0 || pool.second != 0) pools.insert({static_cast<c10::DeviceIndex>(device), pool});
    }
  }
  std::vector<DevicePool> released;
  for (const DevicePool& pool : pools) {
    try {
      if (allocator.getPoolUseCount(pool.first, pool.second) == 0) released.push_back(pool);
    } catch (const c10::Error&) {  // freed since the snapshot
    }
  }
  return released;
}

void push_pool_release(python::Session& session, const DevicePool& pool, std::uint64_t time) {
  Event event{};
  event.kind = EventKind::kPoolRelease;
  event.time = time;
  event.location = session.recorder.location_id({kCudaType, pool.first, 0, pool.second.first, pool.second.second});
  session.recorder.push(event);
}

void push_state(python::Session& session, int device, const std::vector<native::SegmentInfo>& segments,
                const LibraryWorkspaces& workspaces, std::uint64_t time) {
  Event event{};
  event.time = time;
  const auto push = [&](EventKind kind, std::uint64_t address, std::uint64_t size) {
    event.kind = kind;
    event.address = address;
    event.size = size;
    session.recorder.push(event);
  };
  std::uint64_t count = segments.size();
  for (const native::SegmentInfo& segment : segments) count += segment.blocks.size();
  event.location = session.recorder.location_id({kCudaType, device, 0, 0, 0});
  event.kind = EventKind::kAllocatorState;
  AllocatorStateFields(event).entries = count;
  std::uint64_t state = 0;
  session.recorder.push(event, &state);
  for (const native::SegmentInfo& segment : segments) {
    const auto& pool = segment.owner_private_pool_id;
    event.location = session.recorder.location_id(
        {kCudaType, device, reinterpret_cast<std::uint64_t>(segment.stream), pool.first, pool.second});
    StateBlockFields(event).requested = 0;  // clear the value of the previous block
    StateSegmentFields(event).flags =
        (segment.is_large ? kLargeSegment : 0) | (segment.is_expandable ? kExpandableSegment : 0);
    push(EventKind::kStateSegment, segment.address, segment.total_size);
    std::uint64_t address = segment.address;  // blocks fill their segment without gaps
    for (const native::BlockInfo& block : segment.blocks) {
      const StateBlockFields fields(event);
      fields.requested = block.requested_size;
      fields.state = block.allocated ? kBlockAllocated : block.active ? kBlockPendingFree : kBlockInactive;
      push(EventKind::kStateBlock, address, block.size);
      const auto workspace = std::find_if(workspaces.begin(), workspaces.end(),
                                          [address](const auto& entry) { return entry.first == address; });
      if (block.allocated && workspace != workspaces.end()) {
        session.recorder.add_library_block(state, address, workspace->second);
      }
      address += block.size;
    }
  }
}

}  // namespace alloctrace::torch_side
