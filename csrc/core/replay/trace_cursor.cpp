#include "trace_cursor.h"

#include <system_error>

namespace alloctrace {

void TraceCursor::jump(const Checkpoint& checkpoint) {
  decoder_.reset();
  replay_.unpack(checkpoint.state);
  chunk_ = checkpoint.chunk;
  taken_until_ = chunk_ == 0 ? trace_->compacted_until() : trace_->chunks()[chunk_ - 1].end_sequence();
  events_.clear();
  index_ = 0;
  knows_fold_ = true;
}

void TraceCursor::stand_behind_fold() {
  taken_until_ = trace_->compacted_until();
  knows_fold_ = true;
}

void TraceCursor::seek(std::uint64_t sequence) {
  decoder_.reset();
  const std::vector<Chunk>& chunks = trace_->chunks();
  while (chunk_ < chunks.size() && chunks[chunk_].end_sequence() <= sequence) ++chunk_;
}

void TraceCursor::decode_ahead() {
  if (trace_->chunks().size() - chunk_ < kWorthAThread) return;
  try {
    decoder_ = std::make_unique<DecodingThread>(trace_, chunk_);
  } catch (const std::system_error&) {
    // No thread to be had: it takes longer.
  }
}

// Decodes the next chunk if it has events before `until`. One that cannot be decoded counts as taken, and as lost.
bool TraceCursor::decode_next(std::uint64_t until) {
  const std::vector<Chunk>& chunks = trace_->chunks();
  if (chunk_ == chunks.size() || chunks[chunk_].first_sequence >= until) return false;
  const Chunk& chunk = chunks[chunk_];
  const std::uint64_t begin = knows_fold_ ? trace_->compacted_until() : 0;
  if (with_state_ && chunk.first_sequence != (chunk_ == 0 ? begin : chunks[chunk_ - 1].end_sequence())) {
    replay_.note_loss();
  }
  events_.clear();
  index_ = 0;
  try {
    if (decoder_) {
      decoder_->next(events_);
    } else {
      trace_->decode(chunk, events_);
    }
  } catch (const DecodeError&) {
    // Its checksum held, so a faulty writer made it; what follows is still good.
    events_.clear();
    replay_.note_loss();
    taken_until_ = std::max(taken_until_, chunk.end_sequence());
  }
  ++chunk_;
  first_sequence_ = chunk.first_sequence;
  clock_ = trace_->clock_of(chunk);
  return true;
}

}  // namespace alloctrace
