// Pieces of segments: the unit of the replay's state.
#pragma once

#include <cstdint>
#include <vector>

#include "../base/pages.h"

namespace alloctrace {

enum class PieceState : std::uint8_t { kFree, kAllocated, kPendingFree, kUnmapped, kUnused };
// Bits of the first byte of a packed or compacted piece: state and flags.
constexpr std::uint8_t kStateBits = 0x07, kBackwardBit = 0x08, kOlderBit = 0x10;

using PieceIndex = std::uint32_t;
constexpr PieceIndex kNoPiece = UINT32_MAX;

// Part of a segment: torch's Block, or an unmapped part of an expandable segment. The last unmapped part reaches to the
// end of the address space, since no event has its size. One cache line: accesses are mostly far from each other.
struct alignas(64) Piece {
  std::uint64_t address = 0, size = 0;
  std::uint64_t requested = 0;       // if free: left there by torch from an earlier block
  std::uint64_t alloc_sequence = 0;  // sequence number of the allocation
  std::int64_t alloc_ns = 0;
  PieceIndex previous = kNoPiece, next = kNoPiece;  // neighbours in the segment
  std::uint32_t segment = 0;
  std::uint32_t stack = 0;  // if is_of_backward: of the forward operator
  std::uint32_t thread = 0;
  std::uint16_t node_type = 0;
  PieceState state = PieceState::kUnused;
  bool is_of_backward : 1 = false;  // allocated in backward, without a Python stack
  bool is_older : 1 = false;  // allocated before the recording; alloc_sequence is in the first state that lists it
};
static_assert(sizeof(Piece) == 64);

using Pieces = std::vector<Piece, LargePageAllocator<Piece>>;

}  // namespace alloctrace
