// One pass of the replay over a complete trace, with checkpoints for the state at any event (States). Read-only after
// construction, except for caches in Roles: only one thread at a time may query roles.
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
#include "compacted_state.h"
#include "group_timeline.h"
#include "lifetime_thread.h"
#include "replay.h"
#include "run_evidence.h"
#include "trace_cursor.h"

namespace alloctrace {

// A state was requested that compaction did not keep.
class CompactedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ReplayRun {
 public:
  static constexpr std::size_t kKindNumbers = RunEvidence::kKindNumbers;

  // `points`, `lines`: see RunEvidence. `progress` gets a fraction from 0 to 1. `nodes_at_begin`: arguments of
  // Lifetimes::begin(). Throws OpenError if the file has disappeared, FormatError if its compacted part is invalid.
  ReplayRun(std::shared_ptr<const TraceReader> trace, std::size_t points, const std::vector<std::uint32_t>& lines = {},
            const std::function<void(double)>& progress = {},
            std::pair<std::uint64_t, std::uint64_t> nodes_at_begin = {});

  const ReplayFindings& findings() const { return evidence_.findings(); }
  const Replay& end() const { return end_; }
  // Return timelines and lifetimes by device, in the order of end().devices().
  const std::vector<MemoryTimeline>& timelines() const { return evidence_.timelines(); }
  const std::vector<LongLifetimes>& long_lifetimes() const { return evidence_.long_lifetimes(); }
  const Roles& roles() const { return evidence_.roles(); }
  const std::vector<Loops::Loop>& loops() const { return evidence_.loops(); }

  const std::vector<MemorySample>& samples() const { return evidence_.samples(); }
  const std::vector<PositionEvent>& positions() const { return evidence_.positions(); }
  const std::vector<FailedAllocation>& failed_allocations() const { return evidence_.failed_allocations(); }
  std::uint64_t kind_count(std::size_t kind) const { return evidence_.kind_count(kind); }
  const std::vector<KeptEvent>& kept_events() const { return evidence_.kept_events(); }
  std::int64_t compacted_interval_ns() const { return evidence_.compacted_interval_ns(); }
  std::uint64_t left_out() const { return evidence_.left_out(); }
  const std::vector<std::uint64_t>& compacted_positions() const;

  // Return a cursor before the first event that is not compacted.
  TraceCursor cursor_at_beginning() const;
  // Move a cursor to the nearest checkpoint before event `until`, unless the cursor is nearer already.
  void move_near(TraceCursor& cursor, std::uint64_t until) const;
  std::uint64_t compacted_until() const { return trace_->compacted_until(); }
  std::uint64_t end_sequence() const { return trace_->chunks().empty() ? 0 : trace_->chunks().back().end_sequence(); }
  // Return the state before a compacted event. Throws CompactedError unless it is one of compacted_positions().
  Replay compacted_state_before(std::uint64_t until) const;
  // Intervals from `begin_ns` to `end_ns`. All bytes in the compacted part are 0 (unknown).
  std::vector<GroupTimeline> group_timelines(GroupOptions options,
                                             const std::function<void(double)>& progress = {}) const;
  std::vector<std::array<RoleAllocations, kRoleCount>> role_allocations(std::uint64_t first,
                                                                        std::uint64_t until) const {
    return alloctrace::role_allocations(cursor_before(first), roles(), first, until);
  }
  std::vector<std::uint64_t> allocations_with_roles(std::size_t device, const std::vector<std::size_t>& included_roles,
                                                    const std::vector<bool>& excluded) const {
    return alloctrace::allocations_with_roles(cursor_before(0), roles(), device, included_roles, excluded);
  }
  // Return a cursor at the nearest checkpoint before an event; for a compacted event, at the first event not compacted.
  TraceCursor cursor_before(std::uint64_t sequence) const;
  // Return the time (wall clock) of the last event before `until`, or 0; interpolated in the compacted part.
  std::int64_t time_before(std::uint64_t until) const;
  // Return the sequence number of the first event after a time (wall clock), or UINT64_MAX.
  std::uint64_t sequence_after(std::int64_t time_ns) const;

 private:
  static constexpr std::size_t kMaxCheckpointBytes = std::size_t{200} << 20;

  const Checkpoint* checkpoint_before(std::uint64_t sequence) const;  // nullptr: use beginning_
  std::unique_ptr<LifetimeThread> start_lives_thread();
  void restore_compacted(Replay& replay);
  std::int64_t compacted_time_before(std::uint64_t until) const;
  void add_checkpoint(std::size_t chunk, std::uint64_t events, const Replay& replay);

  std::shared_ptr<const TraceReader> trace_;
  RunEvidence evidence_;
  std::unique_ptr<const CompactedState> compacted_;  // nullptr: nothing is compacted
  Checkpoint beginning_;                             // empty state, or the end of the compacted part
  std::vector<std::pair<std::uint64_t, std::int64_t>> compacted_times_;  // of events, ascending
  Replay end_;
  std::vector<Checkpoint> checkpoints_;
  // Distance of checkpoints in events: long enough that copying the state (kBytesPerEvent) costs little beside the
  // replay, and 0.2 s of replay at most. Longer if the checkpoints would exceed kMaxCheckpointBytes.
  static constexpr std::uint64_t kMinDistance = 25'000, kMaxDistance = 750'000, kBytesPerEvent = 14;
  std::uint64_t checkpoint_distance_ = kMinDistance, next_checkpoint_ = kMinDistance;
  std::size_t checkpoint_bytes_ = 0;
};

// State of all memory at any position of a trace. Several States of one ReplayRun may be used on different threads, but
// its roles only on one.
class States {
 public:
  explicit States(std::shared_ptr<const ReplayRun> run) : run_(std::move(run)), cursor_(run_->cursor_at_beginning()) {}

  const ReplayRun& run() const { return *run_; }
  // Return the state after all events below `until`, valid until the next call. Ascending positions cost one replay of
  // the events in between. Throws CompactedError for a compacted position whose state was not kept.
  const Replay& before(std::uint64_t until);
  // Free the memory of the last state.
  void release();

 private:
  std::shared_ptr<const ReplayRun> run_;
  TraceCursor cursor_;                     // holds the last state that is not compacted
  std::optional<Replay> compacted_state_;  // the last compacted state
  std::uint64_t compacted_position_ = 0;
};

}  // namespace alloctrace
