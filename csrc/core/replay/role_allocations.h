// Allocations by role within a range of events: a separate pass, since a role may be known only after the free.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "roles.h"
#include "trace_cursor.h"

namespace alloctrace {

struct RoleAllocations {
  std::uint64_t allocations = 0;
  std::uint64_t bytes = 0, exact_bytes = 0, largest = 0;  // requested bytes; exact: of blocks with an exact role
};

// Sum the allocations in [first, until), by device in the order of Replay::devices() and by role. `cursor`: at or
// before `first`. `roles`: finished. Throws OpenError if the file has disappeared.
std::vector<std::array<RoleAllocations, kRoleCount>> role_allocations(TraceCursor cursor, const Roles& roles,
                                                                      std::uint64_t first, std::uint64_t until);

}  // namespace alloctrace
