// What is known of a recording that runs, as of the last time its trace was read: see Follower.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../format/format.h"
#include "device_memory.h"

namespace alloctrace {

struct FollowedDevice {
  std::int32_t device_type = 0, device_index = 0;
  MemoryTotals totals;
  bool reports_segments = false;
  std::uint64_t largest_free = 0;
  std::uint64_t peak_allocated = 0, peak_reserved = 0;         // since the recording began
  std::uint64_t allocations = 0, allocated_in_all = 0;         // requested bytes
  std::uint64_t refused = 0;                                   // requests that ended in out of memory
  std::uint64_t driver_used = 0, driver_total = 0;             // as last reported; 0: never
  std::vector<std::uint64_t> curve_allocated, curve_reserved;  // highest of each interval
  std::vector<std::uint64_t> requested;                        // at each point
};

struct FollowedFrame {
  std::string function, filename;
  std::int32_t line = 0;
  std::string source;  // "": not known
  std::string cell;    // "In[3]", of a notebook
};

// What a stack has live.
struct FollowedStack {
  std::size_t device = 0;  // in Followed::devices
  std::uint32_t stack = 0;
  // Of a stack without frames, what it stands for (see Definitions): memory of before the recording, what a library
  // keeps for itself, or what a node of autograd allocated.
  bool is_older = false;
  std::string library;
  NodeType node;
  std::shared_ptr<const std::vector<FollowedFrame>> frames;  // innermost first
  std::uint64_t bytes = 0, blocks = 0;                       // now; requested
  std::vector<std::uint64_t> at_points;
  std::string holder;  // as the last look at the program's objects found it; "": not known
};

struct Followed {
  std::uint64_t readings = 0;   // how often the trace was read
  std::int64_t read_at_ns = 0;  // when, by the wall clock; before the reading began
  bool caught_up = false;       // all that was there then was read
  std::uint64_t events = 0;     // the number after that of the last event that was read
  std::uint64_t file_bytes = 0;
  Counters counters{};
  std::uint64_t missing_events = 0, damaged = 0;
  bool ended = false;
  std::int64_t begin_ns = 0, end_ns = 0;  // wall clock: of the recording, and of the last event that was read
  std::uint64_t steps = 0;                // that have ended
  std::uint64_t last_step = 0;            // number of the last
  std::int64_t curve_interval_ns = 0;
  // Where what each stack held is compared: ends of steps, counted, or, in a program without them, seconds. The later
  // half of the run alone: what only its beginning filled does not grow.
  bool points_are_steps = false;
  std::vector<double> points;
  std::vector<FollowedDevice> devices;
  std::vector<FollowedStack> stacks;  // those that changed most between the points, and those that hold most
};

}  // namespace alloctrace
