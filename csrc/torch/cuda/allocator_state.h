// The native allocator's state, its segments and blocks, as events.
#pragma once

#include <cstdint>
#include <vector>

#include "../../python/recording/session.h"
#include "torch_release.h"

namespace alloctrace::torch_side {

using StateByDevice = std::vector<std::vector<native::SegmentInfo>>;

// By device index. Calls snapshot() once: its trace entries, one for each device in order, are the moments of the
// states.
StateByDevice read_state(native::CUDAAllocator& allocator);

// One allocator_state event, which tells how many follow, and a state_segment or state_block event for each segment and
// block, segments before their blocks.
void push_state(python::Session& session, int device, const std::vector<native::SegmentInfo>& segments,
                std::uint64_t time);

}  // namespace alloctrace::torch_side
