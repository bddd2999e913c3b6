// Cursor over a trace: decodes events in order from any checkpoint, and replays the memory of all devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "../reading/decoding_thread.h"
#include "../reading/trace_reader.h"
#include "replay.h"

namespace alloctrace {

// A stored state, and the position in the trace that follows it.
struct Checkpoint {
  std::size_t chunk = 0;     // the first chunk that is not in the state
  std::uint64_t events = 0;  // number of events in the state
  PackedReplay state;
};

class TraceCursor {
 public:
  // Minimum number of chunks for which a thread is worth its start.
  static constexpr std::size_t kMinThreadChunks = 8;

  // Start before the first event. Without `with_state`, events are decoded but not replayed: several times faster.
  explicit TraceCursor(std::shared_ptr<const TraceReader> trace, bool with_state = true)
      : trace_(std::move(trace)), with_state_(with_state), replay_(trace_->definitions()) {}

  void restore(const Checkpoint& checkpoint);
  // Continue after the compacted part; the caller has restored replay() to its end.
  void skip_compacted();
  // Go forward to the chunk of event `sequence`. Only without `with_state`.
  void seek(std::uint64_t sequence);
  // Decode the rest of a long trace on another thread, until restore() or seek(). Call only to read to the end.
  void decode_in_background();

  bool at_end() const { return index_ == events_.size() && chunk_ == trace_->chunks().size(); }
  // Return the index of the chunk that is decoded next.
  std::size_t chunk() const { return chunk_; }
  std::uint64_t consumed_until() const { return consumed_until_; }
  const Replay& replay() const { return replay_; }
  Replay& replay() { return replay_; }

  // Swap the events of the last chunk, which must be completely consumed, with `events`, whose capacity is reused.
  // Return the sequence number of the first.
  std::uint64_t swap_events(std::vector<Event>& events) {
    events_.swap(events);
    index_ = events_.size();
    return first_sequence_;
  }

  // Call `visit(event, sequence, time_ns, change)` for the rest of a chunk below `until`, with the sizes of frees set.
  // Return false if there are no such events. Throws OpenError if the file has disappeared.
  template <typename Visit>
  bool consume_chunk(std::uint64_t until, ReplayFindings* findings, Visit visit) {
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
      visit(event, sequence, time_ns, change);
    }
    consumed_until_ = std::max(consumed_until_, first_sequence_ + end);
    return true;
  }

 private:
  bool decode_next(std::uint64_t until);

  // Prefetch the memory of later events in three steps, each this number of events before its use.
  static constexpr std::size_t kEntryAhead = 24, kPieceAhead = 16, kNeighboursAhead = 8;
  void prefetch() const {
    // A free is mostly two successive events with one address: prefetch once.
    const auto is_new = [this](std::size_t at) {
      return at < events_.size() && events_[at].address != events_[at - 1].address;
    };
    if (is_new(index_ + kEntryAhead)) replay_.prefetch_entry(events_[index_ + kEntryAhead]);
    if (is_new(index_ + kPieceAhead)) replay_.prefetch_piece(events_[index_ + kPieceAhead]);
    if (is_new(index_ + kNeighboursAhead)) replay_.prefetch_neighbours(events_[index_ + kNeighboursAhead]);
  }

  std::shared_ptr<const TraceReader> trace_;
  bool with_state_;
  bool has_compacted_state_ = false;  // else the compacted events count as missing
  Replay replay_;
  std::size_t chunk_ = 0;
  std::uint64_t consumed_until_ = 0;
  std::vector<Event> events_;  // of chunk_ - 1
  std::size_t index_ = 0;      // of the next event in events_
  std::uint64_t first_sequence_ = 0;
  ChunkClock clock_;
  std::unique_ptr<DecodingThread> decoder_;
};

}  // namespace alloctrace
