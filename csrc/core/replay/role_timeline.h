// Requested bytes of each role over time: at the end of each of many equal intervals. A second pass over the trace,
// since what a block is for may be known only when it is gone.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../reading/trace_reader.h"
#include "roles.h"
#include "trace_cursor.h"

namespace alloctrace {

using RoleBytes = std::array<std::uint64_t, kRoleCount>;

// By device, in the order of Replay::devices(), and interval; `roles`: of a whole pass. cursor: stands at the
// beginning, or where what is folded ends, before which all is 0. `progress` gets a share from 0 to 1. Throws OpenError
// when the file went away in the meantime.
std::vector<std::vector<RoleBytes>> role_timelines(const std::shared_ptr<const TraceReader>& trace, TraceCursor cursor,
                                                   const Roles& roles, std::size_t points,
                                                   const std::function<void(double)>& progress = {});

}  // namespace alloctrace
