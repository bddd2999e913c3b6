// Comparison of a device's lists, indices and totals with those recomputed from its pieces. Empty without checks.
#ifdef ALLOCTRACE_CHECKS
#include <algorithm>
#include <cinttypes>

#include "device_memory.h"

namespace alloctrace {

std::uint64_t DeviceMemory::mapped_bytes() const {
  std::uint64_t bytes = 0;
  for (const Piece& piece : pieces_) {
    if (piece.segment != 0 && piece.state != PieceState::kUnused && piece.state != PieceState::kUnmapped) {
      bytes += piece.size;
    }
  }
  return bytes;
}

void DeviceMemory::check_consistency(std::uint64_t sequence) {
  if (events_to_next_check_ != 0) {
    --events_to_next_check_;
    return;
  }
  constexpr std::uint64_t kMaxPiecesPerEvent = 8;
  events_to_next_check_ = pieces_.size() / kMaxPiecesPerEvent;

  MemoryTotals totals;
  totals.reserved = mapped_bytes() + reserved_by_no_piece_;
  std::uint64_t used_pieces = 0, other_mapped = 0, expandable_free = 0;
  std::vector<std::uint64_t> free_sizes;
  std::vector<PieceIndex> head_of(segments_.size(), kNoPiece);  // first piece of each segment's chain
  const auto is_used = [this](PieceIndex index) {
    return index < pieces_.size() && pieces_[index].state != PieceState::kUnused;
  };
  for (PieceIndex index = 0; index < pieces_.size(); ++index) {
    const Piece& piece = pieces_[index];
    if (piece.state == PieceState::kUnused) continue;
    ++used_pieces;
    const PieceIndex* const entry = piece_at_.find(piece.address);
    ALLOCTRACE_CHECK(entry && *entry == index,
                     "event %" PRIu64 ": the index has piece %" PRIu32 " at 0x%" PRIx64 ", the list has piece %" PRIu32,
                     sequence, entry ? *entry : kNoPiece, piece.address, index);
    ALLOCTRACE_CHECK(piece.segment < segments_.size(), "event %" PRIu64 ": piece 0x%" PRIx64 " is in no segment",
                     sequence, piece.address);
    ALLOCTRACE_CHECK(piece.next == kNoPiece || (is_used(piece.next) && pieces_[piece.next].previous == index &&
                                                pieces_[piece.next].address > piece.address),
                     "event %" PRIu64 ": piece 0x%" PRIx64 " is not linked to its next piece", sequence, piece.address);
    ALLOCTRACE_CHECK(piece.previous == kNoPiece || (is_used(piece.previous) && pieces_[piece.previous].next == index),
                     "event %" PRIu64 ": piece 0x%" PRIx64 " is not linked to its previous piece", sequence,
                     piece.address);
    switch (piece.state) {
      case PieceState::kAllocated:
        totals.requested += piece.requested;
        totals.allocated += piece.size;
        totals.active += piece.size;
        ++totals.blocks;
        break;
      case PieceState::kPendingFree:
        totals.active += piece.size;
        ++other_mapped;
        break;
      case PieceState::kFree:
        ++other_mapped;
        totals.releasable += releasable_bytes(piece);
        free_sizes.push_back(piece.size);
        if (segments_[piece.segment].is_expandable) {
          ++expandable_free;
          const auto free = expandable_free_.find(piece.address);
          ALLOCTRACE_CHECK(free != expandable_free_.end() && free->second == index,
                           "event %" PRIu64 ": free piece 0x%" PRIx64 " is missing in the list by address", sequence,
                           piece.address);
        }
        break;
      default:
        break;
    }
  }

  for (PieceIndex head = 0; head < pieces_.size(); ++head) {
    if (!is_used(head) || pieces_[head].previous != kNoPiece) continue;
    for (PieceIndex index = head; index != kNoPiece; index = pieces_[index].next) {
      PieceIndex& other = head_of[pieces_[index].segment];
      ALLOCTRACE_CHECK(pieces_[index].segment == 0 || other == kNoPiece || other == head,
                       "event %" PRIu64 ": segment %" PRIu32 " has two chains, from 0x%" PRIx64 " and 0x%" PRIx64,
                       sequence, pieces_[index].segment, pieces_[other].address, pieces_[head].address);
      other = head;
    }
  }
  for (const std::uint32_t segment : unused_segments_) {
    ALLOCTRACE_CHECK(head_of[segment] == kNoPiece,
                     "event %" PRIu64 ": unused segment %" PRIu32 " is used or listed twice", sequence, segment);
    head_of[segment] = 0;
  }
  std::vector<bool> is_listed(pieces_.size());
  for (const PieceIndex index : unused_pieces_) {
    ALLOCTRACE_CHECK(!is_used(index) && !is_listed[index],
                     "event %" PRIu64 ": unused piece %" PRIu32 " is used or listed twice", sequence, index);
    is_listed[index] = true;
  }
  ALLOCTRACE_CHECK(piece_at_.size() == used_pieces && unused_pieces_.size() == pieces_.size() - used_pieces,
                   "event %" PRIu64 ": %" PRIu64
                   " of %zu pieces are used, %zu have an entry by address, %zu are unused",
                   sequence, used_pieces, pieces_.size(), piece_at_.size(), unused_pieces_.size());
  std::sort(free_sizes.begin(), free_sizes.end());
  ALLOCTRACE_CHECK(free_sizes_.equals(free_sizes) && expandable_free_.size() == expandable_free,
                   "event %" PRIu64 ": the sizes of the %zu free pieces differ from the list of sizes, or their number",
                   sequence, free_sizes.size());
  const auto check_total = [sequence](const char* name, std::uint64_t total, std::uint64_t expected) {
    ALLOCTRACE_CHECK(total == expected, "event %" PRIu64 ": %s is %" PRIu64 ", of the pieces %" PRIu64, sequence, name,
                     total, expected);
  };
  check_total("requested", totals_.requested, totals.requested);
  check_total("allocated", totals_.allocated, totals.allocated);
  check_total("active", totals_.active, totals.active);
  check_total("reserved", totals_.reserved, totals.reserved);
  check_total("releasable", totals_.releasable, totals.releasable);
  check_total("blocks", totals_.blocks, totals.blocks);
  check_total("other_mapped", other_mapped_, other_mapped);
}

}  // namespace alloctrace
#endif
