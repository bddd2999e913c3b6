// State of the native allocator, its segments and blocks, as events; and records of CUDA devices: name, capacity,
// identity, and the bytes that the process may reserve.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "../../python/recording/session.h"
#include "library_blocks.h"
#include "torch_release.h"

namespace alloctrace::torch_side {

// Record all devices. Call once torch has initialised CUDA. Changes neither the current device nor the last CUDA error.
void record_devices() noexcept;
// Record fractions below 1, set by the program or per_process_memory_fraction. Call once the upstream is initialised.
void record_memory_fractions(native::CUDAAllocator& upstream) noexcept;
// Record the fraction that was just set for one device.
void record_memory_fraction(native::CUDAAllocator& upstream, c10::DeviceIndex device) noexcept;

using StateByDevice = std::vector<std::vector<native::SegmentInfo>>;

// Return the segments by device. Calls snapshot() once, which makes a SNAPSHOT entry for each device in turn.
StateByDevice read_state(native::CUDAAllocator& allocator);
// Push an allocator_state event with the number of following events. Then push a state_segment event per segment, each
// followed by a state_block event per block. Name the blocks that are workspaces.
void push_state(python::Session& session, int device, const std::vector<native::SegmentInfo>& segments,
                const LibraryWorkspaces& workspaces, std::uint64_t time);

// Return the private pools that have segments but no users. Call without a hook's locks: torch takes the device's lock.
using DevicePool = std::pair<c10::DeviceIndex, c10::MempoolId_t>;
std::vector<DevicePool> released_pools(native::CUDAAllocator& allocator, const StateByDevice& state);
void push_pool_release(python::Session& session, const DevicePool& pool, std::uint64_t time);

}  // namespace alloctrace::torch_side
