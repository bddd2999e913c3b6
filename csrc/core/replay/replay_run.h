// One pass of the replay over a whole trace, which leaves check points behind: the state at any event is then a short
// replay from the one before it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../reading/trace_reader.h"
#include "memory_timeline.h"
#include "replay.h"

namespace alloctrace {

// What the driver said of a device's memory (of the cpu: the system of this process's), and what torch's allocator had
// reserved there at that moment. In bytes; kNotTold where it is not.
struct MemorySample {
  static constexpr std::uint64_t kNotTold = UINT64_MAX;
  std::uint64_t sequence = 0;
  std::int64_t time_ns = 0;
  std::int32_t device_type = 0, device_index = 0;
  std::uint64_t used = 0, total = 0, by_this_process = kNotTold, by_others = kNotTold, reserved = kNotTold;
};

// A step's end, a mark, a region's begin or end.
struct Position {
  EventKind kind;
  std::uint64_t sequence;
  std::int64_t time_ns;
  std::uint64_t value;                    // number of the step, or string id of the name
  std::vector<std::uint64_t> live_bytes;  // requested ones, per device, in the order of end().devices()
};

// A request that the allocator refused.
struct Refusal {
  std::uint64_t sequence = 0;
  std::uint32_t forward_stack = 0;  // see ForwardStacks
};

class ReplayRun {
 public:
  // How many events of a kind there are, kinds of a newer recorder too.
  static constexpr std::size_t kKindNumbers = 256;

  // `points` intervals of equal time make the timeline. `progress` is told a share from 0 to 1. Throws OpenError when
  // the file went away meanwhile.
  ReplayRun(std::shared_ptr<const TraceReader> trace, std::size_t points,
            const std::function<void(double)>& progress = {});

  const ReplayFindings& findings() const { return findings_; }
  // At the end of the trace.
  const Replay& end() const { return *end_; }
  // Per device, in the order of end().devices().
  const std::vector<MemoryTimeline>& timelines() const { return timelines_; }

  const std::vector<MemorySample>& samples() const { return samples_; }
  const std::vector<Position>& positions() const { return positions_; }
  const std::vector<Refusal>& refusals() const { return refusals_; }
  std::uint64_t kind_count(std::size_t kind) const { return kind_counts_[kind]; }

  // The state after all events with a sequence number below `until`; good until the next call. Moments that are asked
  // for in their order cost one replay of the events between them.
  const Replay& state_before(std::uint64_t until);
  // Sequence number of the first event after a moment (wall clock).
  std::uint64_t sequence_after(std::int64_t time_ns) const;

 private:
  struct CheckPoint {
    std::size_t chunk;  // the state is the one before it
    PackedReplay state;
  };
  void take_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay);
  void take_sample(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay);
  void finish_samples();
  void keep_check_point(std::size_t chunk, const Replay& replay);

  std::shared_ptr<const TraceReader> trace_;
  ReplayFindings findings_;
  std::vector<MemoryTimeline> timelines_;
  std::vector<Position> positions_;
  std::vector<Refusal> refusals_;
  std::uint64_t kind_counts_[kKindNumbers] = {};
  std::vector<MemorySample> samples_;
  std::vector<std::size_t> early_samples_;  // of devices of which nothing had been told yet
  std::unique_ptr<const Replay> end_;
  std::vector<CheckPoint> check_points_;
  std::uint64_t check_point_distance_, next_check_point_;  // in events
  std::size_t check_point_bytes_ = 0;
  Replay asked_;  // the state that was asked for last
  std::uint64_t asked_until_ = UINT64_MAX;
};

}  // namespace alloctrace
