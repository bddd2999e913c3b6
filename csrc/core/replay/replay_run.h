// One pass of the replay over a whole trace, which leaves checkpoints behind: the state at any event is then a short
// replay from the one before it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "../format/event_fields.h"
#include "../reading/trace_reader.h"
#include "long_lives.h"
#include "loops.h"
#include "memory_timeline.h"
#include "replay.h"
#include "role_allocations.h"
#include "role_timeline.h"
#include "roles.h"
#include "trace_cursor.h"

namespace alloctrace {

// What the driver reported of a device's memory (for the cpu: the system of this process's), and what torch's allocator
// had reserved there then. In bytes, or kUnknownBytes.
struct MemorySample {
  std::uint64_t sequence = 0;
  std::int64_t time_ns = 0;
  std::int32_t device_type = 0, device_index = 0;
  std::uint64_t used = 0, total = 0, by_this_process = kUnknownBytes, by_others = kUnknownBytes,
                reserved = kUnknownBytes;
};

// A step's end, a mark, a region's begin or end.
struct PositionEvent {
  EventKind kind;
  std::uint64_t sequence;
  std::int64_t time_ns;
  std::uint64_t value;                    // number of the step, or string id of the name
  bool is_said;                           // of a step: by the program, not inferred
  std::vector<std::uint64_t> live_bytes;  // requested ones, per device, in the order of end().devices()
};

// A request that the allocator refused.
struct Refusal {
  std::uint64_t sequence = 0;
  std::uint32_t forward_stack = 0;  // see ForwardStacks
};

class ReplayRun {
 public:
  // For the number of events of each kind, including kinds of a newer recorder.
  static constexpr std::size_t kKindNumbers = 256;

  // `points` intervals of equal time make the timeline. `lines`: a number for the line of each stack, which LongLives
  // notes the growth of. `progress` gets a share from 0 to 1. Throws OpenError when the file went away in the meantime.
  // `nodes_at_begin`: the native id of a thread, and how many nodes it had made before the recording: Fates::begin().
  ReplayRun(std::shared_ptr<const TraceReader> trace, std::size_t points, const std::vector<std::uint32_t>& lines = {},
            const std::function<void(double)>& progress = {},
            std::pair<std::uint64_t, std::uint64_t> nodes_at_begin = {});

  const ReplayFindings& findings() const { return findings_; }
  // At the end of the trace.
  const Replay& end() const { return end_; }
  // Per device, in the order of end().devices().
  const std::vector<MemoryTimeline>& timelines() const { return timelines_; }
  const std::vector<LongLives>& long_lives() const { return long_lives_; }
  const Roles& roles() const { return roles_; }
  const std::vector<Loops::Loop>& loops() const { return loops_.loops(); }

  const std::vector<MemorySample>& samples() const { return samples_; }
  const std::vector<PositionEvent>& positions() const { return positions_; }
  const std::vector<Refusal>& refusals() const { return refusals_; }
  std::uint64_t kind_count(std::size_t kind) const { return kind_counts_[kind]; }

  // The state after all events with a sequence number below `until`; good until the next call. Positions that are
  // asked for in order cost one replay of the events between them.
  const Replay& state_before(std::uint64_t until);
  // Requested bytes by role, see role_timelines().
  std::vector<std::vector<RoleBytes>> role_timelines(std::size_t points,
                                                     const std::function<void(double)>& progress = {}) const {
    return alloctrace::role_timelines(trace_, roles_, points, progress);
  }
  // What was allocated for each role, see role_allocations().
  std::vector<std::array<RoleAllocations, kRoleCount>> role_allocations(std::uint64_t first,
                                                                        std::uint64_t until) const {
    return alloctrace::role_allocations(cursor_before(first), roles_, first, until);
  }
  // A cursor that stands at the nearest checkpoint before an event.
  TraceCursor cursor_before(std::uint64_t sequence) const;
  // Time (wall clock) of the last event before `until`; 0 where there is none.
  std::int64_t time_before(std::uint64_t until) const;
  // Sequence number of the first event after a time (wall clock).
  std::uint64_t sequence_after(std::int64_t time_ns) const;

 private:
  void take_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay);
  void take_sample(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay);
  void finish_samples();
  static constexpr std::size_t kCheckpointBytes = std::size_t{400} << 20;

  const Checkpoint* checkpoint_before(std::uint64_t sequence) const;  // nullptr: the beginning is nearer
  void keep_checkpoint(std::size_t chunk, std::uint64_t events, const Replay& replay);

  std::shared_ptr<const TraceReader> trace_;
  ReplayFindings findings_;
  std::vector<MemoryTimeline> timelines_;
  std::vector<LongLives> long_lives_;
  Loops loops_;
  Roles roles_;
  std::vector<PositionEvent> positions_;
  std::vector<Refusal> refusals_;
  std::uint64_t kind_counts_[kKindNumbers] = {};
  std::vector<MemorySample> samples_;
  std::vector<std::size_t> early_samples_;  // of devices without any event before
  Replay end_;
  std::vector<Checkpoint> checkpoints_;
  // In events: so many that a copy of the state costs little beside their replay, at most two tenths of a second of it;
  // more in traces that would need too much memory for their states.
  static constexpr std::uint64_t kNearest = 25'000, kFarthest = 750'000, kBytesPerEvent = 14;
  std::uint64_t checkpoint_distance_ = kNearest, next_checkpoint_ = kNearest;
  std::size_t checkpoint_bytes_ = 0;
  TraceCursor asked_;  // where the state is that was asked for last
};

}  // namespace alloctrace
