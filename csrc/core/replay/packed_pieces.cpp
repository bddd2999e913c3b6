#include "packed_pieces.h"

#include <array>

namespace alloctrace {

namespace {

// The first byte of a piece: its state, and what is true of it.
constexpr std::uint8_t kState = 0x07, kBackward = 0x08, kOlder = 0x10;

constexpr std::size_t kVarintBytes = 10, kFields = 11;

// Writes into memory that has room: a check for each byte would take longer than all the rest.
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
  // None is next to the one itself, which no piece is its own neighbour of.
  void neighbour(PieceIndex value, PieceIndex of) { value == kNoPiece ? number(0) : difference(value, of); }

 private:
  std::uint8_t* at_;
};

PieceIndex neighbour(ByteReader& reader, PieceIndex of) {
  const std::uint64_t folded = reader.varint();
  return folded == 0 ? kNoPiece : static_cast<PieceIndex>(add_zigzag_delta(of, folded));
}

}  // namespace

PackedPieces::PackedPieces(const Pieces& pieces) : count_(pieces.size()) {
  constexpr std::size_t kBuffered = 1024;
  std::array<std::uint8_t, kBuffered * (1 + kFields * kVarintBytes)> buffer;
  packed_.reserve(pieces.size() * 24);
  const Piece none;
  const Piece* last = &none;
  for (std::size_t begin = 0; begin < pieces.size(); begin += kBuffered) {
    Writer writer(buffer.data());
    for (std::size_t at = begin; at < pieces.size() && at < begin + kBuffered; ++at) {
      const Piece& piece = pieces[at];
      const auto state = static_cast<std::uint8_t>(piece.state);
      if (piece.state == PieceState::kUnused) {
        writer.byte(state);
        continue;
      }
      const auto index = static_cast<PieceIndex>(at);
      writer.byte(
          static_cast<std::uint8_t>(state | (piece.is_of_backward ? kBackward : 0) | (piece.is_older ? kOlder : 0)));
      writer.difference(piece.address, last->address);
      writer.number(piece.size);
      writer.difference(piece.requested, piece.size);
      writer.difference(piece.birth, last->birth);
      writer.difference(static_cast<std::uint64_t>(piece.birth_ns), static_cast<std::uint64_t>(last->birth_ns));
      writer.neighbour(piece.previous, index);
      writer.neighbour(piece.next, index);
      writer.number(piece.segment);
      writer.number(piece.stack);
      writer.number(piece.thread);
      writer.number(piece.node_type);
      last = &piece;
    }
    packed_.insert(packed_.end(), buffer.data(), writer.at());
  }
  packed_.shrink_to_fit();
}

void PackedPieces::unpack(Pieces& pieces) const {
  pieces.clear();
  pieces.reserve(count_);
  ByteReader reader(packed_);
  Piece last;
  while (pieces.size() < count_) {
    const auto index = static_cast<PieceIndex>(pieces.size());
    const std::uint8_t first = reader.byte();
    const auto state = static_cast<PieceState>(first & kState);
    if (state == PieceState::kUnused) {
      pieces.emplace_back();
      continue;
    }
    last.state = state;
    last.is_of_backward = (first & kBackward) != 0;
    last.is_older = (first & kOlder) != 0;
    last.address = add_zigzag_delta(last.address, reader.varint());
    last.size = reader.varint();
    last.requested = add_zigzag_delta(last.size, reader.varint());
    last.birth = add_zigzag_delta(last.birth, reader.varint());
    const std::uint64_t birth_ns = add_zigzag_delta(static_cast<std::uint64_t>(last.birth_ns), reader.varint());
    last.birth_ns = static_cast<std::int64_t>(birth_ns);
    last.previous = neighbour(reader, index);
    last.next = neighbour(reader, index);
    last.segment = reader.varint32();
    last.stack = reader.varint32();
    last.thread = reader.varint32();
    last.node_type = static_cast<std::uint16_t>(reader.varint());
    pieces.push_back(last);
  }
}

}  // namespace alloctrace
