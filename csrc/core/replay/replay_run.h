// One pass of the replay over a whole trace, which leaves checkpoints behind: the state at any event is then a short
// replay from the one before it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../format/event_fields.h"
#include "../reading/trace_reader.h"
#include "long_lives.h"
#include "loops.h"
#include "memory_timeline.h"
#include "replay.h"
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

  // `points` intervals of equal time make the timeline. `progress` gets a share from 0 to 1. Throws OpenError when
  // the file went away in the meantime.
  ReplayRun(std::shared_ptr<const TraceReader> trace, std::size_t points,
            const std::function<void(double)>& progress = {});

  const ReplayFindings& findings() const { return findings_; }
  // At the end of the trace.
  const Replay& end() const { return end_; }
  // Per device, in the order of end().devices().
  const std::vector<MemoryTimeline>& timelines() const { return timelines_; }
  const std::vector<LongLives>& long_lives() const { return long_lives_; }
  const std::vector<Loops::Loop>& loops() const { return loops_.loops(); }

  const std::vector<MemorySample>& samples() const { return samples_; }
  const std::vector<PositionEvent>& positions() const { return positions_; }
  const std::vector<Refusal>& refusals() const { return refusals_; }
  std::uint64_t kind_count(std::size_t kind) const { return kind_counts_[kind]; }

  // The state after all events with a sequence number below `until`; good until the next call. Positions that are
  // asked for in order cost one replay of the events between them.
  const Replay& state_before(std::uint64_t until);
  // A cursor that stands at the nearest checkpoint before an event.
  TraceCursor cursor_before(std::uint64_t sequence) const;
  // Sequence number of the first event after a time (wall clock).
  std::uint64_t sequence_after(std::int64_t time_ns) const;

 private:
  void take_position(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay);
  void take_sample(const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Replay& replay);
  void finish_samples();
  static constexpr std::size_t kCheckpointBytes = std::size_t{1} << 30;

  const Checkpoint* checkpoint_before(std::uint64_t sequence) const;  // nullptr: the beginning is nearer
  void keep_checkpoint(std::size_t chunk, const Replay& replay);

  std::shared_ptr<const TraceReader> trace_;
  ReplayFindings findings_;
  std::vector<MemoryTimeline> timelines_;
  std::vector<LongLives> long_lives_;
  Loops loops_;
  std::vector<PositionEvent> positions_;
  std::vector<Refusal> refusals_;
  std::uint64_t kind_counts_[kKindNumbers] = {};
  std::vector<MemorySample> samples_;
  std::vector<std::size_t> early_samples_;  // of devices without any event before
  Replay end_;
  std::vector<Checkpoint> checkpoints_;
  // In events. About two tenths of a second of replay; more in traces that would need too much memory for their states.
  std::uint64_t checkpoint_distance_ = 750'000, next_checkpoint_ = checkpoint_distance_;
  std::size_t checkpoint_bytes_ = 0;
  TraceCursor asked_;  // where the state is that was asked for last
};

}  // namespace alloctrace
