// Follower of a running recording: reads new parts of its trace, and updates the state of all memory. Each event is
// read once, so a reading takes time only for the events since the last reading.
//
// The replay is that of replay.h. Unlike in a reading of the complete trace, a late definition (that a block belongs to
// a library) does not apply to earlier events.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "../format/definitions.h"
#include "../reading/growing_file.h"
#include "../reading/spool_reader.h"
#include "followed.h"
#include "growth_points.h"
#include "replay.h"

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
  struct Curve {
    std::vector<std::vector<std::uint64_t>> allocated, reserved;  // by device
    std::int64_t interval_ns = 50'000'000;
    std::size_t intervals = 0;
  };

  void apply_block(const BlockHeader& header, const Bytes& payload, bool is_last);
  void restore_compacted(const BlockHeader& header, const Bytes& payload);
  void apply_spool(const SpoolContents& spool);
  void apply_events(std::vector<Event>& events, std::uint64_t first, const ClockAnchor& begin, const ClockAnchor& end,
                    bool is_last);
  // Complete frees among the first `read_before` events, if they were only requested when read from the spool.
  void complete_frees(std::vector<Event>& events, std::uint64_t first, std::uint64_t read_before);
  void apply_event(Event& event, std::uint64_t sequence, std::int64_t time_ns, bool is_last_step);
  void note_step(const Event& event, bool is_last);
  void note_clock(const ClockAnchor& anchor);
  // Continue all curves at their present levels up to an event. Must be called before the event is applied: memory that
  // is freed after a pause was live during the pause.
  void extend_curve(std::int64_t time_ns);
  void note_level(std::size_t device, std::int64_t time_ns);
  FollowedDevice& device(std::size_t index);
  void publish(bool caught_up);
  void add_stacks(Followed& results, const std::vector<const GrowthPoints::Point*>& points);
  std::shared_ptr<const std::vector<FollowedFrame>> frames_of(std::uint32_t stack);
  void describe_origin(FollowedStack& row) const;

  GrowingFile file_;
  std::string spool_path_, header_json_ = "{}";
  std::function<void(const Followed&)> publish_;
  Definitions definitions_;
  Replay replay_;
  Followed results_;
  GrowthPoints points_;
  Curve curve_;
  ClockAnchor first_anchor_{}, last_anchor_{};
  std::uint64_t next_sequence_ = 0, unpublished_ = 0;
  // Frees read from the spool, which may still complete there: see Spool::complete_free().
  std::set<std::uint64_t> pending_frees_;
  bool has_reported_steps_ = false, has_new_definitions_ = false;
  std::map<std::uint32_t, std::shared_ptr<const std::vector<FollowedFrame>>> frames_;
};

}  // namespace alloctrace
