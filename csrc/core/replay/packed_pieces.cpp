#include "packed_pieces.h"

#include <algorithm>

#include "../base/varint.h"

namespace alloctrace {

namespace {

constexpr std::size_t kMaxVarintBytes = 10, kMaxFields = 10;

// Unchecked writer: a bounds check for each byte would take longer than all other work.
class Writer {
 public:
  explicit Writer(std::uint8_t* at) : at_(at) {}
  std::uint8_t* at() const { return at_; }

  void byte(std::uint8_t value) { *at_++ = value; }
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) *at_++ = static_cast<std::uint8_t>(value) | 0x80;
    *at_++ = static_cast<std::uint8_t>(value);
  }
  void difference(std::uint64_t value, std::uint64_t from) { number(zigzag_delta(value, from)); }
  // A difference of 0 means no neighbour, since no piece is its own.
  void neighbour(PieceIndex value, PieceIndex of) { value == kNoPiece ? number(0) : difference(value, of); }

 private:
  std::uint8_t* at_;
};

PieceIndex neighbour(ByteReader& reader, PieceIndex of) {
  const std::uint64_t encoded = reader.varint();
  return encoded == 0 ? kNoPiece : static_cast<PieceIndex>(add_zigzag_delta(of, encoded));
}

}  // namespace

PackedPieces::PackedPieces(const Pieces& pieces) : count_(pieces.size()) {
  constexpr std::size_t kBytesPerPiece = 40;  // estimate, rather too large
  std::vector<std::uint8_t> buffer(kPiecesPerBatch * (1 + kMaxFields * kMaxVarintBytes));
  const Piece none;
  const Piece* last = &none;
  for (std::size_t begin = 0; begin < pieces.size(); begin += kPiecesPerBatch) {
    Writer writer(buffer.data());
    for (std::size_t at = begin; at < pieces.size() && at < begin + kPiecesPerBatch; ++at) {
      const Piece& piece = pieces[at];
      const auto state = static_cast<std::uint8_t>(piece.state);
      if (piece.state == PieceState::kUnused) {
        writer.byte(state);
        continue;
      }
      const auto index = static_cast<PieceIndex>(at);
      writer.byte(static_cast<std::uint8_t>(state | (piece.is_of_backward ? kBackwardBit : 0) |
                                            (piece.is_older ? kOlderBit : 0)));
      writer.difference(piece.address, last->address);
      writer.number(piece.size);
      writer.difference(piece.requested, piece.size);
      writer.difference(piece.alloc_sequence, last->alloc_sequence);
      writer.difference(static_cast<std::uint64_t>(piece.alloc_ns), static_cast<std::uint64_t>(last->alloc_ns));
      writer.neighbour(piece.next, index);
      writer.number(piece.segment);
      writer.number(piece.stack);
      writer.number(piece.thread);
      writer.number(piece.node_type);
      last = &piece;
    }
    const auto bytes = static_cast<std::size_t>(writer.at() - buffer.data());
    if (parts_.empty() || parts_.back().capacity() - parts_.back().size() < bytes) {
      parts_.emplace_back();
      parts_.back().reserve(std::max(std::min((pieces.size() - begin) * kBytesPerPiece, kLargePage), bytes));
    }
    parts_.back().insert(parts_.back().end(), buffer.data(), writer.at());
  }
  if (!parts_.empty() && parts_.back().capacity() < kLargePage) parts_.back().shrink_to_fit();
}

std::size_t PackedPieces::bytes() const {
  std::size_t sum = parts_.capacity() * sizeof(Part);
  for (const Part& part : parts_) sum += part.capacity();
  return sum;
}

void PackedPieces::unpack(Pieces& pieces) const {
  pieces.clear();
  pieces.reserve(count_);
  Piece last;
  for (const Part& part : parts_) {
    ByteReader reader(part.data(), part.size());
    while (!reader.done()) {
      const auto index = static_cast<PieceIndex>(pieces.size());
      const std::uint8_t flags = reader.byte();
      const auto state = static_cast<PieceState>(flags & kStateBits);
      if (state == PieceState::kUnused) {
        pieces.emplace_back();
        continue;
      }
      last.state = state;
      last.is_of_backward = (flags & kBackwardBit) != 0;
      last.is_older = (flags & kOlderBit) != 0;
      last.address = add_zigzag_delta(last.address, reader.varint());
      last.size = reader.varint();
      last.requested = add_zigzag_delta(last.size, reader.varint());
      last.alloc_sequence = add_zigzag_delta(last.alloc_sequence, reader.varint());
      const std::uint64_t alloc_ns = add_zigzag_delta(static_cast<std::uint64_t>(last.alloc_ns), reader.varint());
      last.alloc_ns = static_cast<std::int64_t>(alloc_ns);
      last.next = neighbour(reader, index);
      last.segment = reader.varint32();
      last.stack = reader.varint32();
      last.thread = reader.varint32();
      last.node_type = static_cast<std::uint16_t>(reader.varint());
      pieces.push_back(last);
    }
  }
  for (PieceIndex index = 0; index < pieces.size(); ++index) {
    if (pieces[index].state != PieceState::kUnused && pieces[index].next != kNoPiece) {
      pieces[pieces[index].next].previous = index;
    }
  }
}

}  // namespace alloctrace
