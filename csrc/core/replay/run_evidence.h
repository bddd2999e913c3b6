// What one pass of the replay gathers: everything that is asked of a run as a whole, and is not the memory at one
// moment. It grows with what the program is (its stacks, loops, blocks), not with how long it runs: what there may be
// any number of is kept at a resolution that falls. So it can be put into a fold, and a later pass goes on from there.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "../format/event_fields.h"
#include "../reading/trace_reader.h"
#include "life_change.h"
#include "long_lives.h"
#include "loops.h"
#include "memory_timeline.h"
#include "replay.h"
#include "roles.h"

namespace alloctrace {

// What the driver reported of a device's memory (for the cpu: the system of this process's), and what torch's allocator
// had reserved there then. In bytes, or kUnknownBytes.
struct MemorySample {
  std::uint64_t sequence = 0;
  std::int64_t time_ns = 0;
  std::int32_t device_type = 0, device_index = 0;
  std::uint64_t used = 0, total = 0, by_this_process = kUnknownBytes, by_others = kUnknownBytes,
                reserved = kUnknownBytes;
  bool is_early = false;      // there was no event of the device before
  std::uint64_t ordinal = 0;  // how many there were of the device before
};

// A step's end, a mark, a region's begin or end.
struct PositionEvent {
  EventKind kind;
  std::uint64_t sequence;
  std::int64_t time_ns;
  std::uint64_t value;                    // number of the step, or string id of the name
  bool is_said;                           // of a step: by the program, not inferred
  std::vector<std::uint64_t> live_bytes;  // requested ones, per device, in the order of end().devices()
  std::uint64_t ordinal = 0;              // of a step: how many of the same kind (said, inferred) came before it
};

// A request that the allocator refused.
struct Refusal {
  std::uint64_t sequence = 0;
  std::uint32_t forward_stack = 0;  // see ForwardStacks
};

// An event that a fold keeps as it was.
struct KeptEvent {
  std::uint64_t sequence = 0;
  std::int64_t time_ns = 0;
  Event event{};
};

// When some of the folded events happened, evenly spread: of each 2^n the first.
class EventTimes {
 public:
  static constexpr std::size_t kMost = 1024;
  void take(std::uint64_t sequence, std::int64_t time_ns) {
    if (sequence < next_) return;
    times_.emplace_back(sequence, time_ns);
    if (times_.size() == kMost) halve();
    next_ = ((times_.back().first >> shift_) + 1) << shift_;
  }
  const std::vector<std::pair<std::uint64_t, std::int64_t>>& times() const { return times_; }
  void save(FoldWriter& fold) const;
  void restore(FoldReader& fold);

 private:
  void halve();

  std::vector<std::pair<std::uint64_t, std::int64_t>> times_;
  unsigned shift_ = 0;
  std::uint64_t next_ = 0;
};

// What is asked of saved evidence without all the rest.
struct FoldedSums {
  std::vector<std::pair<MemoryTimeline::Peak, MemoryTimeline::Peak>> peaks;  // by device: allocated, reserved
  std::uint64_t steps_said = 0, steps_inferred = 0;
};

class RunEvidence {
 public:
  // For the number of events of each kind, including kinds of a newer recorder.
  static constexpr std::size_t kKindNumbers = 256;
  // What a fold keeps at most: intervals of the timeline; steps; marks, regions, refusals and settings, the first and
  // the last; samples of the driver.
  static constexpr std::size_t kFoldedIntervals = 2048, kFoldedSteps = 32'768, kFoldedMarks = 4'096,
                               kFoldedEvents = 512, kFoldedSamples = 8'192;

  // To be looked at: `points` intervals of equal time make the timeline; a number for the line of each stack, which
  // LongLives notes the growth of.
  RunEvidence(const TraceReader& trace, std::size_t points, const std::vector<std::uint32_t>& lines);
  // To be saved.
  explicit RunEvidence(const TraceReader& trace);

  // The next event, which the replay has taken in.
  void take(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Change& change, Replay& replay) {
    take_lives(event, sequence, take_memory(event, sequence, time_ns, change, replay));
  }
  // The same in two parts, which share nothing: each takes all events in order, the second any time later, also on
  // another thread.
  LifeChange take_memory(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Change& change,
                         Replay& replay);
  void take_lives(const Event& event, std::uint64_t sequence, const LifeChange& change);
  // After the last.
  void finish(const Replay& end);

  // past: see Roles::save().
  void save(FoldWriter& fold, const Replay& replay, const std::vector<Roles::Key>& past) const;
  // Before the first event. Throws DecodeError.
  void restore(FoldReader& fold, const Replay& replay, std::int64_t until_ns);
  static FoldedSums read_sums(FoldReader& fold);
  // Events whose states are asked for whatever else is: the state before each is to be kept. Ascending.
  std::vector<std::uint64_t> moments() const;
  const Definitions& definitions() const { return *definitions_; }

  const std::vector<MemoryTimeline>& timelines() const { return timelines_; }
  const std::vector<LongLives>& long_lives() const { return long_lives_; }
  const std::vector<Loops::Loop>& loops() const { return loops_.loops(); }
  Roles& roles() { return roles_; }
  const Roles& roles() const { return roles_; }
  const std::vector<MemorySample>& samples() const { return samples_; }
  const std::vector<PositionEvent>& positions() const { return positions_; }
  const std::vector<Refusal>& refusals() const { return refusals_; }
  std::uint64_t kind_count(std::size_t kind) const { return kind_counts_[kind]; }
  ReplayFindings& findings() { return findings_; }
  const ReplayFindings& findings() const { return findings_; }
  // Of those before the fold's end: refused requests and settings.
  const std::vector<KeptEvent>& kept_events() const { return kept_events_; }
  const EventTimes& times() const { return times_; }
  // Steps, marks, ... that a fold has left out.
  std::uint64_t left_out() const { return left_out_; }
  // How long the intervals of a folded timeline are; 0: nothing is folded.
  std::int64_t folded_interval_ns() const { return folded_interval_ns_; }

 private:
  void take_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay);
  void take_sample(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay);
  std::size_t interval_at(std::int64_t time_ns);
  void save_positions(FoldWriter& fold) const;
  void restore_positions(FoldReader& fold);

  const Definitions* definitions_;
  const bool for_fold_;
  const std::size_t points_;
  const std::vector<std::uint32_t>* lines_;  // nullptr: each stack is a line of its own
  const std::int64_t begin_ns_, span_ns_;
  std::size_t interval_ = 0;
  std::int64_t interval_end_ns_;
  unsigned interval_shift_ = 20;  // of a run that is to be saved: 2^n ns are an interval

  ReplayFindings findings_;
  std::vector<MemoryTimeline> timelines_;
  std::vector<LongLives> long_lives_;
  Loops loops_;
  Roles roles_;
  std::vector<PositionEvent> positions_;
  std::uint64_t steps_said_ = 0, steps_inferred_ = 0;
  std::vector<Refusal> refusals_;
  std::uint64_t kind_counts_[kKindNumbers] = {};
  std::vector<MemorySample> samples_;
  std::vector<KeptEvent> kept_events_;
  EventTimes times_;
  std::uint64_t left_out_ = 0;
  std::int64_t folded_interval_ns_ = 0;
};

}  // namespace alloctrace
