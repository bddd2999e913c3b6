// DeviceMemory's segments: how they come and go, whole ones and expandable ones in parts.
#include <algorithm>
#include <iterator>

#include "device_memory.h"

namespace alloctrace {

const char* DeviceMemory::add_segment(const Event& event) {
  rules_.tells_segments = true;
  const char* problem = nullptr;
  if (piece_at_.find(event.address)) {
    problem = "a new segment where there is one";
    remove_segment(event);
  }
  // With expandable segments on, a private pool that is given a segment has an allocator of its own, and the setting
  // does not hold for it: torch would have mapped memory instead.
  const std::uint64_t pool = pool_of(event.location);
  if (rules_.settings.expandable_segments && pool != 0 &&
      std::find(rules_.own_pools.begin(), rules_.own_pools.end(), pool) == rules_.own_pools.end()) {
    rules_.own_pools.push_back(pool);
  }
  Piece piece;
  piece.address = event.address;
  piece.size = event.size;
  piece.segment = add_segment_record(event.address, event.size, event.location, false);
  piece.state = PieceState::kFree;
  count(new_piece(piece), true);
  totals_.reserved += event.size;
  return problem;
}

const char* DeviceMemory::remove_segment(const Event& event) {
  const PieceIndex* found = piece_at_.find(event.address);
  if (!found) return "a segment that goes, but was not there";
  const Piece first = pieces_[*found];
  const char* problem = nullptr;
  if (first.state != PieceState::kFree || first.previous != kNoPiece || first.next != kNoPiece) {
    problem = "a segment that goes while blocks in it are in use";
  }
  if (first.segment == 0) return problem;
  unused_segments_.push_back(first.segment);
  for (PieceIndex index = *found; index != kNoPiece;) {
    const PieceIndex next = pieces_[index].next;
    count(index, false);
    if (pieces_[index].state != PieceState::kUnmapped) totals_.reserved -= pieces_[index].size;
    drop(index);
    index = next;
  }
  if (first.previous != kNoPiece) pieces_[first.previous].next = kNoPiece;
  return problem;
}

const char* DeviceMemory::map(const Event& event) {
  rules_.tells_segments = true;
  const std::uint64_t end = event.address + event.size;
  const PieceIndex* found = piece_at_.find(event.address);
  PieceIndex index = found ? *found : kNoPiece;
  if (index == kNoPiece) {
    // torch maps from the beginning of what is unmapped: this is a new range, or one from before the trace.
    Piece piece;
    piece.address = event.address;
    piece.size = UINT64_MAX - event.address;
    piece.segment = add_segment_record(event.address, event.size, event.location, true);
    piece.state = PieceState::kUnmapped;
    index = new_piece(piece);
  } else if (pieces_[index].state != PieceState::kUnmapped) {
    return "memory that is mapped a second time";
  }
  if (pieces_[index].size < event.size) return "a mapping that reaches into mapped memory";
  if (pieces_[index].size > event.size) {
    const bool is_open = pieces_[index].next == kNoPiece;
    const PieceIndex* following = piece_at_.find(end);
    if (is_open && following && pieces_[*following].previous == kNoPiece &&
        segments_[pieces_[*following].segment].is_expandable) {
      pieces_[index].size = event.size;  // closes the gap between two stretches that a recording in mid-run began with
      link(index, *following);
    } else {
      split(index, event.size);
    }
  }
  pieces_[index].state = PieceState::kFree;
  totals_.reserved += event.size;
  count(merged(index), true);
  return nullptr;
}

const char* DeviceMemory::unmap(const Event& event) {
  const std::uint64_t end = event.address + event.size;
  auto free_piece = expandable_free_.upper_bound(event.address);
  if (free_piece == expandable_free_.begin()) return "memory that is unmapped, but was not free";
  PieceIndex index = std::prev(free_piece)->second;
  if (pieces_[index].address + pieces_[index].size < end) return "memory that is unmapped, but was not free";
  count(index, false);
  // torch keeps its block for what is unmapped and makes new ones, that remember nothing, for what is left on both
  // sides.
  if (pieces_[index].address < event.address) {
    const PieceIndex front = index;
    index = split(front, event.address - pieces_[front].address);
    std::swap(pieces_[index].requested, pieces_[front].requested);
    count(front, true);
  }
  if (pieces_[index].size > event.size) count(split(index, event.size), true);
  pieces_[index].state = PieceState::kUnmapped;
  totals_.reserved -= event.size;
  index = merged(index);
  if (pieces_[index].previous == kNoPiece && pieces_[index].next == kNoPiece) {
    unused_segments_.push_back(pieces_[index].segment);
    drop(index);
  }
  return nullptr;
}

// A segment's first allocation tells which of torch's two pools it belongs to.
void DeviceMemory::set_large(std::uint32_t index, bool is_large) {
  Segment& segment = segments_[index];
  segment.is_large_known = true;
  if (segment.is_large == is_large) return;
  segment.is_large = is_large;
  segment.unit = is_large ? rules_.settings.large_segment_size : kSmallSegment;
  totals_.releasable = 0;  // the unit has part in it
  for (const Piece& piece : pieces_) {
    if (piece.state == PieceState::kFree) totals_.releasable += releasable_bytes(piece);
  }
}

std::uint32_t DeviceMemory::add_segment_record(std::uint64_t origin, std::uint64_t size, std::uint32_t location,
                                               bool is_expandable) {
  Segment segment;
  segment.origin = origin;
  segment.location = location;
  segment.is_expandable = is_expandable;
  segment.is_large = is_expandable ? size % rules_.settings.large_segment_size == 0 : size > kSmallSegment;
  segment.unit = segment.is_large ? rules_.settings.large_segment_size : kSmallSegment;
  if (unused_segments_.empty()) {
    segments_.push_back(segment);
    return static_cast<std::uint32_t>(segments_.size() - 1);
  }
  const std::uint32_t index = unused_segments_.back();
  unused_segments_.pop_back();
  segments_[index] = segment;
  return index;
}

}  // namespace alloctrace
