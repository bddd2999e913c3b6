#include "states.h"

namespace alloctrace {

const Replay& States::before(std::uint64_t until) {
  if (until < run_->compacted_until()) {
    if (!compacted_state_ || compacted_position_ != until) {
      compacted_state_.reset();
      compacted_state_.emplace(run_->compacted_state_before(until));
      compacted_position_ = until;
    }
    return *compacted_state_;
  }
  if (until >= run_->end_sequence()) return run_->end();
  run_->move_near(cursor_, until);
  const auto ignore = [](const Event&, std::uint64_t, std::int64_t, const Change&) {};
  while (cursor_.consume_chunk(until, nullptr, ignore)) {
  }
  return cursor_.replay();
}

void States::release() {
  cursor_ = run_->cursor_at_beginning();
  compacted_state_.reset();
}

}  // namespace alloctrace
