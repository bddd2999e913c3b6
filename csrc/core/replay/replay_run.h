// One pass of the replay over a whole trace, which leaves checkpoints behind: the state at any event (see states.h) is
// then a short replay from the one before it. Once the pass is over nothing changes, but for what Roles remember of
// stacks: one thread at a time may ask for roles.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../format/event_fields.h"
#include "../reading/trace_reader.h"
#include "fold.h"
#include "lives_thread.h"
#include "replay.h"
#include "role_allocations.h"
#include "role_timeline.h"
#include "run_evidence.h"
#include "trace_cursor.h"

namespace alloctrace {

// A state before the end of a fold that it does not have. The message says so in a sentence.
class FoldedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ReplayRun {
 public:
  static constexpr std::size_t kKindNumbers = RunEvidence::kKindNumbers;

  // `points` intervals of equal time make the timeline. `lines`: a number for the line of each stack, which LongLives
  // notes the growth of. `progress` gets a share from 0 to 1. Throws OpenError when the file went away in the meantime,
  // FormatError where what it begins with in place of folded events makes no sense.
  // `nodes_at_begin`: the native id of a thread, and how many nodes it had made before the recording: Fates::begin().
  ReplayRun(std::shared_ptr<const TraceReader> trace, std::size_t points, const std::vector<std::uint32_t>& lines = {},
            const std::function<void(double)>& progress = {},
            std::pair<std::uint64_t, std::uint64_t> nodes_at_begin = {});

  const ReplayFindings& findings() const { return evidence_.findings(); }
  // At the end of the trace.
  const Replay& end() const { return end_; }
  // Per device, in the order of end().devices().
  const std::vector<MemoryTimeline>& timelines() const { return evidence_.timelines(); }
  const std::vector<LongLives>& long_lives() const { return evidence_.long_lives(); }
  const Roles& roles() const { return evidence_.roles(); }
  const std::vector<Loops::Loop>& loops() const { return evidence_.loops(); }

  const std::vector<MemorySample>& samples() const { return evidence_.samples(); }
  const std::vector<PositionEvent>& positions() const { return evidence_.positions(); }
  const std::vector<Refusal>& refusals() const { return evidence_.refusals(); }
  std::uint64_t kind_count(std::size_t kind) const { return evidence_.kind_count(kind); }
  // Of a folded trace; see RunEvidence.
  const std::vector<KeptEvent>& kept_events() const { return evidence_.kept_events(); }
  std::int64_t folded_interval_ns() const { return evidence_.folded_interval_ns(); }
  std::uint64_t left_out() const { return evidence_.left_out(); }
  const std::vector<std::uint64_t>& folded_moments() const;

  // For States. A cursor that stands where the events begin.
  TraceCursor cursor_at_beginning() const;
  // Brings a cursor as near to event `until` as any checkpoint is, if it does not stand nearer already.
  void approach(TraceCursor& cursor, std::uint64_t until) const;
  // The number of the first event that is not folded, and that after the last of all.
  std::uint64_t folded_until() const { return trace_->compacted_until(); }
  std::uint64_t end_sequence() const { return trace_->chunks().empty() ? 0 : trace_->chunks().back().end_sequence(); }
  // The state before an event of the fold. Throws FoldedError where that is none of the moments that the fold keeps.
  Replay folded_state_before(std::uint64_t until) const;
  // Requested bytes by role, see role_timelines(). In a fold they are 0: not known.
  std::vector<std::vector<RoleBytes>> role_timelines(std::size_t points,
                                                     const std::function<void(double)>& progress = {}) const {
    return alloctrace::role_timelines(trace_, cursor_before(0), roles(), points, progress);
  }
  // What was allocated for each role, see role_allocations().
  std::vector<std::array<RoleAllocations, kRoleCount>> role_allocations(std::uint64_t first,
                                                                        std::uint64_t until) const {
    return alloctrace::role_allocations(cursor_before(first), roles(), first, until);
  }
  // A cursor that stands at the nearest checkpoint before an event, in a fold at its end.
  TraceCursor cursor_before(std::uint64_t sequence) const;
  // Time (wall clock) of the last event before `until`; 0 where there is none. In a fold between two events whose times
  // it keeps.
  std::int64_t time_before(std::uint64_t until) const;
  // Sequence number of the first event after a time (wall clock).
  std::uint64_t sequence_after(std::int64_t time_ns) const;

 private:
  static constexpr std::size_t kCheckpointBytes = std::size_t{200} << 20;

  const Checkpoint* checkpoint_before(std::uint64_t sequence) const;  // nullptr: the beginning is nearer
  std::unique_ptr<LivesThread> lives_thread();
  void restore_fold(Replay& replay);
  std::int64_t folded_time_before(std::uint64_t until) const;
  void keep_checkpoint(std::size_t chunk, std::uint64_t events, const Replay& replay);

  std::shared_ptr<const TraceReader> trace_;
  RunEvidence evidence_;
  std::unique_ptr<const Fold> fold_;                                  // nullptr: nothing is folded
  Checkpoint beginning_;                                              // of the events: empty, or the end of the fold
  std::vector<std::pair<std::uint64_t, std::int64_t>> folded_times_;  // of events, ascending
  Replay end_;
  std::vector<Checkpoint> checkpoints_;
  // In events: so many that a copy of the state costs little beside their replay, at most two tenths of a second of it;
  // more in traces that would need too much memory for their states.
  static constexpr std::uint64_t kNearest = 25'000, kFarthest = 750'000, kBytesPerEvent = 14;
  std::uint64_t checkpoint_distance_ = kNearest, next_checkpoint_ = kNearest;
  std::size_t checkpoint_bytes_ = 0;
};

}  // namespace alloctrace
