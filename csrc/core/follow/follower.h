// Follower of a running recording: reads new parts of its trace, and updates the state of all memory. Each event is
// read once, so a reading takes time only for the events since the last reading.
//
// The replay is that of replay.h. Unlike in a reading of the complete trace, a late definition (that a block belongs to
// a library) does not apply to earlier events.
#pragma once

#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "../format/definitions.h"
#include "../reading/spool_reader.h"
#include "../reading/trace_clock.h"
#include "../replay/replay.h"
#include "followed.h"
#include "growing_file.h"
#include "growth_points.h"
#include "memory_curve.h"
#include "stack_rows.h"

namespace alloctrace {

class Follower {
 public:
  // `publish` gets the results after each reading, and every few million events. Throws OpenError or FormatError.
  Follower(const std::string& path, std::function<void(const Followed&)> publish);
  Follower(const Follower&) = delete;  // the replay points to the definitions
  Follower& operator=(const Follower&) = delete;

  // Read the events since the last call, unless `cancelled`. Throws OpenError if the trace is gone, and FormatError if
  // its compacted part has another version.
  void advance(const std::atomic<bool>& cancelled);
  // Read events from this spool, too, from the next advance() on.
  void read_spool_at(std::string path) { spool_path_ = std::move(path); }
  // Return the header, "{}" before it is read.
  const std::string& header_json() const { return header_json_; }

 private:
  void apply_block(const BlockHeader& header, const Bytes& payload, bool is_last);
  void restore_compacted(const BlockHeader& header, const Bytes& payload);
  void apply_spool(const SpoolContents& spool);
  void apply_events(std::vector<Event>& events, std::uint64_t first, const ClockAnchor& begin, const ClockAnchor& end,
                    bool is_last);
  // Complete frees among the first `read_before` events, if they were only requested when read from the spool.
  void complete_frees(std::vector<Event>& events, std::uint64_t first, std::uint64_t read_before);
  void apply_event(Event& event, std::uint64_t sequence, std::int64_t time_ns, bool is_last_step);
  void note_step(const Event& event, bool is_last);
  void add_anchor(const ClockAnchor& anchor);
  FollowedDevice& device(std::size_t index);
  void publish(bool is_caught_up);

  GrowingFile file_;
  std::string spool_path_, header_json_ = "{}";
  std::function<void(const Followed&)> publish_;
  Definitions definitions_;
  Replay replay_;
  Followed results_;
  GrowthPoints points_;
  MemoryCurve curve_;
  StackRows rows_{definitions_};
  TraceClock clock_{counter_nanoseconds()};
  std::uint64_t next_sequence_ = 0, unpublished_ = 0;
  // Frees read from the spool, which may still complete there: see Spool::complete_free().
  std::set<std::uint64_t> pending_frees_;
  bool has_reported_steps_ = false, has_new_definitions_ = false;
};

}  // namespace alloctrace
