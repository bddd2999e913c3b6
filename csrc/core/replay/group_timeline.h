// Requested bytes of live blocks by role and by site in each of many equal intervals: a second pass over the trace,
// since a role may be known only after the free, and the largest sites only at the end.
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

// Return the allocations of a device (index in Replay::devices()) that have one of these roles, except those of the
// stacks in `excluded`. `cursor`: at the beginning. `roles`: finished. Throws OpenError if the file has disappeared.
std::vector<std::uint64_t> allocations_with_roles(TraceCursor cursor, const Roles& roles, std::size_t device,
                                                  const std::vector<std::size_t>& included_roles,
                                                  const std::vector<bool>& excluded);

// The first kRoleCount groups are the roles, the others the sites. Each block belongs to a role and to a site.
struct GroupTimeline {
  std::size_t groups = 0;
  std::vector<std::uint64_t> last;  // bytes at the end of each interval, one interval after the other
  // Empty unless GroupOptions::with_extremes. An interval includes the level at its begin.
  std::vector<std::uint64_t> lowest, highest;  // of each group by itself
  std::vector<std::uint64_t> at_peak;          // after the event with the highest sum of all groups
  std::vector<std::uint64_t> peak_sequences;   // that event, by interval
};

struct GroupOptions {
  std::size_t points = 1;                       // number of intervals
  std::int64_t begin_ns = 0, end_ns = 0;        // of all intervals together (wall clock)
  std::uint64_t first = 0, until = UINT64_MAX;  // events of these intervals
  // Site of each stack, by device in the order of Replay::devices(). Other stacks and devices: site_count - 1.
  std::vector<std::vector<std::uint32_t>> site_of_stack;
  std::size_t site_count = 0;
  std::size_t devices = 0;  // with a timeline, even if their first event is after the intervals
  bool with_extremes = false;
};

// Return the timelines by device, in the order of Replay::devices(); 0 in the compacted part. `cursor`: at or before
// `first`. `roles`: finished. `progress` gets a fraction from 0 to 1. Throws OpenError if the file is gone.
std::vector<GroupTimeline> group_timelines(const TraceReader& trace, TraceCursor cursor, const Roles& roles,
                                           const GroupOptions& options,
                                           const std::function<void(double)>& progress = {});

}  // namespace alloctrace
