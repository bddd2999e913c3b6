// Results of following a running recording, as of the last reading of its trace: see Follower.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../format/format.h"
#include "../replay/device_memory.h"

namespace alloctrace {

struct FollowedDevice {
  std::int32_t device_type = 0, device_index = 0;
  MemoryTotals totals;
  bool reports_segments = false;
  std::uint64_t largest_free = 0;
  std::uint64_t peak_allocated = 0, peak_reserved = 0;  // since the recording began
  std::uint64_t allocations = 0, total_requested = 0;   // requested bytes
  std::uint64_t failed_allocations = 0;
  std::uint64_t driver_used = 0, driver_total = 0;             // as last reported; 0: never
  std::vector<std::uint64_t> curve_allocated, curve_reserved;  // maximum of each interval
  std::vector<std::uint64_t> requested;                        // at each of Followed::points
};

struct FollowedFrame {
  std::string function, filename;
  std::int32_t line = 0;
  std::string source;  // "": unknown
  std::string cell;    // of a notebook: "In[3]"
};

// Live memory of a stack.
struct FollowedStack {
  std::size_t device = 0;  // in Followed::devices
  std::uint32_t stack = 0;
  // Origin of a stack without frames (see Definitions): older than the recording, a library, or a node of autograd.
  bool is_older = false;
  std::string library;
  NodeType node;
  std::shared_ptr<const std::vector<FollowedFrame>> frames;  // innermost first
  std::uint64_t bytes = 0, blocks = 0;                       // requested
  std::vector<std::uint64_t> at_points;
  std::string holder;  // referrer path in the last object scan; "": unknown
};

struct Followed {
  std::uint64_t readings = 0;
  std::int64_t read_at_ns = 0;  // wall clock, at the beginning of the reading
  bool is_caught_up = false;    // the reading reached the end of the trace
  std::uint64_t events = 0;     // sequence number after the last event read
  std::uint64_t file_bytes = 0;
  Counters counters{};
  std::uint64_t missing_events = 0, corrupt_blocks = 0;
  bool ended = false;
  std::int64_t begin_ns = 0, end_ns = 0;  // wall clock: begin of the recording, last event read
  std::uint64_t steps = 0;                // completed steps
  std::uint64_t last_step = 0;            // number of the last step
  std::int64_t curve_interval_ns = 0;
  // Points at which the bytes of stacks are compared: counted steps, or seconds if the program has no steps. Only in
  // the later half of the run, so that memory filled at the beginning does not look like growth.
  bool points_are_steps = false;
  std::vector<double> points;
  std::vector<FollowedDevice> devices;
  std::vector<FollowedStack> stacks;  // with the largest changes between points, and the largest
};

}  // namespace alloctrace
