// The native allocator's state, its segments and blocks, as events.
#pragma once

#include <cstdint>
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

}  // namespace alloctrace::torch_side
