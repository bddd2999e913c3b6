// What was allocated for each role within a range of events. A pass over the range, since what a block is for may be
// known only when it is gone.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "roles.h"
#include "trace_cursor.h"

namespace alloctrace {

struct RoleAllocations {
  std::uint64_t allocations = 0;
  std::uint64_t bytes = 0, exact_bytes = 0, largest = 0;  // requested; exact: of blocks whose role was recorded
};

// By device, in the order of Replay::devices(), and role; of the events from `first` on and before `until`. The cursor
// stands at or before `first`; `roles`: of a whole pass. Throws OpenError when the file went away in the meantime.
std::vector<std::array<RoleAllocations, kRoleCount>> role_allocations(TraceCursor cursor, const Roles& roles,
                                                                      std::uint64_t first, std::uint64_t until);

}  // namespace alloctrace
