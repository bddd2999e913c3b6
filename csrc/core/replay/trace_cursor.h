// Walks through a trace: decodes its events in order, and knows the state of all memory at each of them.
//
// It may begin at any checkpoint. What an event leaves out and the state knows is filled in: the size of a free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "../reading/decoding_thread.h"
#include "../reading/trace_reader.h"
#include "replay.h"

namespace alloctrace {

// A state that is kept, and where the trace continues from it.
struct Checkpoint {
  std::size_t chunk = 0;     // the first whose events are not in the state
  std::uint64_t events = 0;  // that are
  PackedReplay state;
};

class TraceCursor {
 public:
  // Fewer chunks are taken before a thread has begun.
  static constexpr std::size_t kWorthAThread = 8;

  // Stands before the first event. Without `with_state` events are only decoded, which is several times faster.
  explicit TraceCursor(std::shared_ptr<const TraceReader> trace, bool with_state = true)
      : trace_(std::move(trace)), with_state_(with_state), replay_(trace_->definitions()) {}

  void jump(const Checkpoint& checkpoint);
  // The replay has been made what it was at the end of the fold that the trace begins with.
  void stand_behind_fold();
  // Goes to the chunk that has event `sequence`, without the state. Only for a cursor that has none.
  void seek(std::uint64_t sequence);
  // From here on, chunks are decoded on a thread of their own where that pays, until the next jump() or seek(). For
  // whoever takes the whole rest of the trace.
  void decode_ahead();

  bool at_end() const { return index_ == events_.size() && chunk_ == trace_->chunks().size(); }
  // The chunk that is decoded next.
  std::size_t chunk() const { return chunk_; }
  // All events below this number have been taken.
  std::uint64_t taken_until() const { return taken_until_; }
  const Replay& replay() const { return replay_; }
  Replay& replay() { return replay_; }

  // Gives the events away that the last take_chunk() took, with their numbers as they were made known; all of a chunk.
  // `events` is what is written into next.
  std::uint64_t swap_taken(std::vector<Event>& events) {
    events_.swap(events);
    index_ = events_.size();
    return first_sequence_;
  }

  // Takes the next events up to the end of their chunk, those below `until` only; calls
  // `take(event, sequence, time_ns, change)` for each. False where there are none before `until`. Throws OpenError when
  // the file went away in the meantime.
  template <typename Take>
  bool take_chunk(std::uint64_t until, ReplayFindings* findings, Take take) {
    if (index_ == events_.size() && !decode_next(until)) return false;
    const std::uint64_t begin = first_sequence_ + index_;
    if (begin >= until) return false;
    const std::size_t end = std::min<std::uint64_t>(events_.size(), until - first_sequence_);
    for (; index_ < end; ++index_) {
      Event& event = events_[index_];
      const std::uint64_t sequence = first_sequence_ + index_;
      const std::int64_t time_ns = clock_.wall_ns(event.time);
      Change change;
      if (with_state_) {
        prefetch();
        change = replay_.apply(event, sequence, time_ns, findings);
      }
      take(event, sequence, time_ns, change);
    }
    taken_until_ = std::max(taken_until_, first_sequence_ + end);
    return true;
  }

 private:
  bool decode_next(std::uint64_t until);

  // Asks for the memory of events ahead, in three steps, each this many events before it is needed.
  static constexpr std::size_t kEntryAhead = 24, kPieceAhead = 16, kNeighboursAhead = 8;
  void prefetch() const {
    // A free mostly comes as two events, one right after the other: the first has asked already.
    const auto is_new = [this](std::size_t at) {
      return at < events_.size() && events_[at].address != events_[at - 1].address;
    };
    if (is_new(index_ + kEntryAhead)) replay_.prefetch_entry(events_[index_ + kEntryAhead]);
    if (is_new(index_ + kPieceAhead)) replay_.prefetch_piece(events_[index_ + kPieceAhead]);
    if (is_new(index_ + kNeighboursAhead)) replay_.prefetch_neighbours(events_[index_ + kNeighboursAhead]);
  }

  std::shared_ptr<const TraceReader> trace_;
  bool with_state_;
  bool knows_fold_ = false;  // of a trace that begins with one: else what was before is missing
  Replay replay_;
  std::size_t chunk_ = 0;
  std::uint64_t taken_until_ = 0;
  std::vector<Event> events_;  // of the chunk before chunk_
  std::size_t index_ = 0;      // in events_: of the next event
  std::uint64_t first_sequence_ = 0;
  ChunkClock clock_;
  std::unique_ptr<DecodingThread> decoder_;
};

}  // namespace alloctrace
