#include "states.h"

namespace alloctrace {

const Replay& States::before(std::uint64_t until) {
  if (until < run_->folded_until()) {
    if (!moment_ || moment_before_ != until) {
      moment_.reset();
      moment_.emplace(run_->folded_state_before(until));
      moment_before_ = until;
    }
    return *moment_;
  }
  if (until >= run_->end_sequence()) return run_->end();
  run_->approach(cursor_, until);
  const auto take = [](const Event&, std::uint64_t, std::int64_t, const Change&) {};
  while (cursor_.take_chunk(until, nullptr, take)) {
  }
  return cursor_.replay();
}

void States::let_go() {
  cursor_ = run_->cursor_at_beginning();
  moment_.reset();
}

}  // namespace alloctrace
