// The native allocator's state, its segments and blocks, as events.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "../../python/recording/session.h"
#include "library_blocks.h"
#include "torch_release.h"

namespace alloctrace::torch_side {

using StateByDevice = std::vector<std::vector<native::SegmentInfo>>;

// By device index. Calls snapshot() once: its trace entries, one for each device in order, say when each state was
// read.
StateByDevice read_state(native::CUDAAllocator& allocator);

// Writes one allocator_state event, with the number of those that follow, then a state_segment event for each segment,
// followed by a state_block event for each of its blocks, and names those that are workspaces.
void push_state(python::Session& session, int device, const std::vector<native::SegmentInfo>& segments,
                const LibraryWorkspaces& workspaces, std::uint64_t time);

// The private pools in a state that nobody uses any more, though their segments are still there. Not under any lock
// that a hook takes: torch takes the device's.
using PoolOfDevice = std::pair<c10::DeviceIndex, c10::MempoolId_t>;
std::vector<PoolOfDevice> pools_let_go(native::CUDAAllocator& allocator, const StateByDevice& state);
void push_let_go(python::Session& session, const PoolOfDevice& pool, std::uint64_t time);

}  // namespace alloctrace::torch_side
