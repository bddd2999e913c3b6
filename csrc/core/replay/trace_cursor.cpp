#include "trace_cursor.h"

#include <system_error>

namespace alloctrace {

void TraceCursor::restore(const Checkpoint& checkpoint) {
  decoder_.reset();
  replay_.unpack(checkpoint.state);
  chunk_ = checkpoint.chunk;
  consumed_until_ = chunk_ == 0 ? trace_->compacted_until() : trace_->chunks()[chunk_ - 1].end_sequence();
  events_.clear();
  index_ = 0;
  has_compacted_state_ = true;
}

void TraceCursor::skip_compacted() {
  consumed_until_ = trace_->compacted_until();
  has_compacted_state_ = true;
}

void TraceCursor::seek(std::uint64_t sequence) {
  decoder_.reset();
  const std::vector<Chunk>& chunks = trace_->chunks();
  while (chunk_ < chunks.size() && chunks[chunk_].end_sequence() <= sequence) ++chunk_;
}

void TraceCursor::decode_in_background() {
  if (trace_->chunks().size() - chunk_ < kMinThreadChunks) return;
  try {
    decoder_ = std::make_unique<DecodingThread>(trace_, chunk_);
  } catch (const std::system_error&) {
    // Without a thread, decode_next() decodes.
  }
}

// Decode the next chunk if it begins before `until`. A chunk that cannot be decoded counts as consumed and lost.
bool TraceCursor::decode_next(std::uint64_t until) {
  const std::vector<Chunk>& chunks = trace_->chunks();
  if (chunk_ == chunks.size() || chunks[chunk_].first_sequence >= until) return false;
  const Chunk& chunk = chunks[chunk_];
  const std::uint64_t begin = has_compacted_state_ ? trace_->compacted_until() : 0;
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
    // The checksum was correct, so the writer was faulty; later chunks are still valid.
    events_.clear();
    replay_.note_loss();
    consumed_until_ = std::max(consumed_until_, chunk.end_sequence());
  }
  ++chunk_;
  first_sequence_ = chunk.first_sequence;
  clock_ = trace_->clock_of(chunk);
  return true;
}

}  // namespace alloctrace
