// Follows a recording that runs: reads what its trace has gained, and keeps the state of all memory. Each event is read
// once, so that a run of days costs at each look what happened since the last.
//
// The replay is that of replay.h. What differs from a reading of the whole trace: a definition that comes late (that a
// block is a library's own) is not applied to what was there before it.
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
  // `publish` gets what is known after each reading, and every few million events on the way. Throws OpenError or
  // FormatError.
  Follower(const std::string& path, std::function<void(const Followed&)> publish);
  Follower(const Follower&) = delete;  // the replay points to the definitions
  Follower& operator=(const Follower&) = delete;

  // Reads what has come since; `cancelled` ends it early. Throws OpenError where the trace is gone, and FormatError
  // where it begins with a fold of another version.
  void advance(const std::atomic<bool>& cancelled);
  // From the next advance() on, also what is not in the file yet.
  void read_spool_at(std::string path) { spool_path_ = std::move(path); }
  // "{}" as long as it has not been read.
  const std::string& header_json() const { return header_json_; }

 private:
  struct Curve {
    std::vector<std::vector<std::uint64_t>> allocated, reserved;  // by device
    std::int64_t interval_ns = 50'000'000;
    std::size_t intervals = 0;
  };

  void take_block(const BlockHeader& header, const Bytes& payload, bool is_last);
  void take_fold(const BlockHeader& header, const Bytes& payload);
  void take_spool(const SpoolContents& spool);
  void take_events(std::vector<Event>& events, std::uint64_t first, const ClockAnchor& begin, const ClockAnchor& end,
                   bool is_last);
  // Of those that were read before: whether a free that was requested then has completed at once since.
  void complete_frees(std::vector<Event>& events, std::uint64_t first, std::uint64_t known);
  void take_event(Event& event, std::uint64_t sequence, std::int64_t time_ns, bool is_last_step);
  void take_step(const Event& event, bool is_last);
  void note_clock(const ClockAnchor& anchor);
  void note_curve(std::size_t device, std::int64_t time_ns);
  FollowedDevice& device(std::size_t index);
  void publish(bool caught_up);
  void add_stacks(Followed& known, const std::vector<const GrowthPoints::Point*>& points);
  std::shared_ptr<const std::vector<FollowedFrame>> frames_of(std::uint32_t stack);
  void say_what_it_stands_for(FollowedStack& row) const;

  GrowingFile file_;
  std::string spool_path_, header_json_ = "{}";
  std::function<void(const Followed&)> publish_;
  Definitions definitions_;
  Replay replay_;
  Followed seen_;
  GrowthPoints points_;
  Curve curve_;
  ClockAnchor first_anchor_{}, last_anchor_{};
  std::uint64_t next_sequence_ = 0, unpublished_ = 0;
  // Requests of frees that were read from the spool before the writer had taken them: see Spool::complete_free.
  std::set<std::uint64_t> undecided_;
  bool says_steps_ = false, definitions_are_new_ = false;
  std::map<std::uint32_t, std::shared_ptr<const std::vector<FollowedFrame>>> frames_;
};

}  // namespace alloctrace
