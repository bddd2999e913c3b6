// The memory at events that are asked for one after another. Two of these may walk at once, on two threads; roles are
// another matter, see replay_run.h.
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
  // The state after all events with a sequence number below `until`; good until the next call. Positions that are
  // asked for in order cost one replay of the events between them. Throws FoldedError where that is in a fold, and none
  // of the moments that it keeps.
  const Replay& before(std::uint64_t until);
  // Gives up the state that was asked for last, and its memory.
  void let_go();

 private:
  std::shared_ptr<const ReplayRun> run_;
  TraceCursor cursor_;            // where the state is that was asked for last
  std::optional<Replay> moment_;  // in the fold, that was asked for last
  std::uint64_t moment_before_ = 0;
};

}  // namespace alloctrace
