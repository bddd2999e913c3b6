// State of all memory at any position of a trace. Several States of one ReplayRun may be used on different threads, but
// its roles only on one (replay_run.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "replay.h"
#include "replay_run.h"
#include "trace_cursor.h"

namespace alloctrace {

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
