// Evidence about a complete run, gathered in one pass of the replay. Compaction saves it, and a later pass continues
// from there. Saved, its size depends on stacks, loops and blocks, not on the run's length: unbounded series are
// downsampled.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "../format/event_fields.h"
#include "../reading/trace_reader.h"
#include "lifetime_change.h"
#include "long_lifetimes.h"
#include "loops.h"
#include "memory_timeline.h"
#include "replay.h"
#include "roles.h"

namespace alloctrace {

// Memory of a device as reported by the driver (for the CPU: of this process, by the system), and bytes reserved by
// torch's allocator at that time. Bytes may be kUnknownBytes.
struct MemorySample {
  std::uint64_t sequence = 0;
  std::int64_t time_ns = 0;
  std::int32_t device_type = 0, device_index = 0;
  std::uint64_t used = 0, total = 0, by_this_process = kUnknownBytes, by_others = kUnknownBytes,
                reserved = kUnknownBytes;
  bool is_early = false;      // before the device's first event
  std::uint64_t ordinal = 0;  // number of earlier samples of the device
};

// A step's end, a mark, a region's begin or end.
struct PositionEvent {
  EventKind kind;
  std::uint64_t sequence;
  std::int64_t time_ns;
  std::uint64_t value;                    // number of the step, or string id of the name
  bool is_reported;                       // step: reported by the program, not inferred
  std::vector<std::uint64_t> live_bytes;  // requested, by device, in the order of Replay::devices()
  std::uint64_t ordinal = 0;              // step: number of earlier ones, reported and inferred apart
};

struct FailedAllocation {
  std::uint64_t sequence = 0;
  std::uint32_t forward_stack = 0;  // see ForwardStacks
};

// A single event that compaction keeps.
struct KeptEvent {
  std::uint64_t sequence = 0;
  std::int64_t time_ns = 0;
  Event event{};
};

// Times of at most kMaxTimes events, evenly spread: the first of each 2^shift_ sequence numbers.
class EventTimes {
 public:
  static constexpr std::size_t kMaxTimes = 1024;
  void add(std::uint64_t sequence, std::int64_t time_ns) {
    if (sequence < next_) return;
    times_.emplace_back(sequence, time_ns);
    if (times_.size() == kMaxTimes) halve();
    next_ = ((times_.back().first >> shift_) + 1) << shift_;
  }
  const std::vector<std::pair<std::uint64_t, std::int64_t>>& times() const { return times_; }
  void save(CompactionWriter& out) const;
  void restore(CompactionReader& in);

 private:
  void halve();

  std::vector<std::pair<std::uint64_t, std::int64_t>> times_;
  unsigned shift_ = 0;
  std::uint64_t next_ = 0;
};

// Part of saved evidence that is readable without restoring the rest.
struct CompactedSums {
  std::vector<std::pair<MemoryTimeline::Peak, MemoryTimeline::Peak>> peaks;  // by device: allocated, reserved
  std::uint64_t steps_reported = 0, steps_inferred = 0;
};

class RunEvidence {
 public:
  // Number of possible event kinds, including those of a newer recorder.
  static constexpr std::size_t kKindNumbers = 256;
  // Maximum numbers after compaction. The first and last failed allocations, settings (both kMaxCompactedEvents), marks
  // and regions are kept; steps and samples are thinned evenly.
  static constexpr std::size_t kMaxCompactedIntervals = 2048, kMaxCompactedSteps = 32'768, kMaxCompactedMarks = 4'096,
                               kMaxCompactedEvents = 512, kMaxCompactedSamples = 8'192;

  // For analysis. `points`: number of intervals of the timeline. `lines`: line number by stack, for the growth in
  // LongLifetimes; not copied.
  RunEvidence(const TraceReader& trace, std::size_t points, const std::vector<std::uint32_t>& lines);
  // For compaction.
  explicit RunEvidence(const TraceReader& trace);

  // Record the next event, after Replay::apply().
  void record(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Change& change, Replay& replay) {
    record_lifetimes(event, sequence, record_memory(event, sequence, time_ns, change, replay));
  }
  // record() in two parts without shared data: each must get all events in order, and record_lifetimes() may run later
  // on another thread.
  LifetimeChange record_memory(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Change& change,
                               Replay& replay);
  void record_lifetimes(const Event& event, std::uint64_t sequence, const LifetimeChange& change);
  void finish(const Replay& end);

  // `past`: see Roles::save().
  void save(CompactionWriter& out, const Replay& replay, const std::vector<Roles::Key>& past) const;
  // Restore before the first event; throw DecodeError.
  void restore(CompactionReader& in, const Replay& replay, std::int64_t until_ns);
  static CompactedSums read_sums(CompactionReader& in);
  // Return the events before which compaction keeps the state, for peaks, leaks and failed allocations; ascending.
  std::vector<std::uint64_t> snapshot_positions() const;
  const Definitions& definitions() const { return *definitions_; }

  const std::vector<MemoryTimeline>& timelines() const { return timelines_; }
  const std::vector<LongLifetimes>& long_lifetimes() const { return long_lifetimes_; }
  const std::vector<Loops::Loop>& loops() const { return loops_.loops(); }
  Roles& roles() { return roles_; }
  const Roles& roles() const { return roles_; }
  const std::vector<MemorySample>& samples() const { return samples_; }
  const std::vector<PositionEvent>& positions() const { return positions_; }
  const std::vector<FailedAllocation>& failed_allocations() const { return failed_allocations_; }
  std::uint64_t kind_count(std::size_t kind) const { return kind_counts_[kind]; }
  ReplayFindings& findings() { return findings_; }
  const ReplayFindings& findings() const { return findings_; }
  // Return failed allocations and settings of the compacted part.
  const std::vector<KeptEvent>& kept_events() const { return kept_events_; }
  const EventTimes& times() const { return times_; }
  // Return the number of steps, marks and regions that compaction has dropped.
  std::uint64_t left_out() const { return left_out_; }
  // Return the length of the intervals of the compacted timeline; 0 if nothing is compacted.
  std::int64_t compacted_interval_ns() const { return compacted_interval_ns_; }

 private:
  void add_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay);
  void add_sample(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay);
  std::size_t interval_at(std::int64_t time_ns);
  void save_timelines(CompactionWriter& out) const;
  void restore_timelines(CompactionReader& in, const Replay& replay, std::int64_t until_ns);
  void add_interval(MemoryTimeline& timeline, const MemoryTimeline::Interval& interval, std::int64_t until_ns) const;
  void restore_long_lifetimes(CompactionReader& in, const std::vector<StackTotals>& stacks);
  std::vector<const PositionEvent*> select_positions() const;
  void save_positions(CompactionWriter& out) const;
  void restore_positions(CompactionReader& in);

  const Definitions* definitions_;
  const bool for_compaction_;
  const std::size_t points_;
  const std::vector<std::uint32_t>* lines_;  // nullptr: lines are stack ids
  const std::int64_t begin_ns_, span_ns_;
  std::size_t interval_ = 0;
  std::int64_t interval_end_ns_;
  unsigned interval_shift_ = 20;  // for compaction: an interval has 2^n ns

  ReplayFindings findings_;
  std::vector<MemoryTimeline> timelines_;
  std::vector<LongLifetimes> long_lifetimes_;
  Loops loops_;
  Roles roles_;
  std::vector<PositionEvent> positions_;
  std::uint64_t steps_reported_ = 0, steps_inferred_ = 0;
  std::vector<FailedAllocation> failed_allocations_;
  std::uint64_t kind_counts_[kKindNumbers] = {};
  std::vector<MemorySample> samples_;
  std::vector<KeptEvent> kept_events_;
  EventTimes times_;
  std::uint64_t left_out_ = 0;
  std::int64_t compacted_interval_ns_ = 0;
};

}  // namespace alloctrace
