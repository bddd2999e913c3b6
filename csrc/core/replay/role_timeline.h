// Requested bytes of live blocks by role at the end of each of many equal intervals: a second pass over the trace,
// since a role may be known only after the free.
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

// Allocations by role within a range of events: a separate pass, since a role may be known only after the free.
struct RoleAllocations {
  std::uint64_t allocations = 0;
  std::uint64_t bytes = 0, exact_bytes = 0, largest = 0;  // requested bytes; exact: of blocks with an exact role
};

// Sum the allocations in [first, until), by device in the order of Replay::devices() and by role. `cursor`: at or
// before `first`. `roles`: finished. Throws OpenError if the file has disappeared.
std::vector<std::array<RoleAllocations, kRoleCount>> role_allocations(TraceCursor cursor, const Roles& roles,
                                                                      std::uint64_t first, std::uint64_t until);

using RoleBytes = std::array<std::uint64_t, kRoleCount>;

// Return the bytes by device, in the order of Replay::devices(), and interval; 0 in the compacted part. `cursor`: at
// the begin of the events. `roles`: finished. `progress` gets a fraction from 0 to 1. Throws OpenError if the file is
// gone.
std::vector<std::vector<RoleBytes>> role_timelines(const std::shared_ptr<const TraceReader>& trace, TraceCursor cursor,
                                                   const Roles& roles, std::size_t points,
                                                   const std::function<void(double)>& progress = {});

}  // namespace alloctrace
