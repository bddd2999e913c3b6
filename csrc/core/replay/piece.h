// A part of a segment: the unit of the replay's state.
#pragma once

#include <cstdint>
#include <vector>

#include "../base/pages.h"

namespace alloctrace {

enum class PieceState : std::uint8_t { kFree, kAllocated, kPendingFree, kUnmapped, kUnused };
// Of the first byte of a packed or folded piece: its state, and what is true of it.
constexpr std::uint8_t kStateBits = 0x07, kBackwardBit = 0x08, kOlderBit = 0x10;

using PieceIndex = std::uint32_t;
constexpr PieceIndex kNoPiece = UINT32_MAX;

// A part of a segment: torch's Block. Unmapped parts of expandable segments are pieces too; the last one of each
// reaches to the end of the address space, since no event has its size. One cache line: most are far from each other.
struct alignas(64) Piece {
  std::uint64_t address = 0, size = 0;
  std::uint64_t requested = 0;  // in a free one what torch left there from an earlier block
  std::uint64_t birth = 0;      // sequence number of its alloc
  std::int64_t birth_ns = 0;
  PieceIndex previous = kNoPiece, next = kNoPiece;  // neighbours in the segment
  std::uint32_t segment = 0;
  std::uint32_t stack = 0;  // the forward's, where `is_of_backward` says so
  std::uint32_t thread = 0;
  std::uint16_t node_type = 0;
  PieceState state = PieceState::kUnused;
  bool is_of_backward : 1 = false;  // made in backward, without a Python stack of its own
  bool is_older : 1 = false;        // there before the recording: its birth is that of the state that lists it
};
static_assert(sizeof(Piece) == 64);

using Pieces = std::vector<Piece, LargePageAllocator<Piece>>;

}  // namespace alloctrace
