#include "device_memory.h"

#include <algorithm>

namespace alloctrace {

std::uint64_t DeviceMemory::pool_of(std::uint32_t location) const {
  const Location& where = definitions_->location(location);
  return where.pool_first << 32 ^ where.pool_second;  // MempoolId_t counts up in one of the two
}

const char* DeviceMemory::apply(const Event& event, std::uint64_t sequence, std::int64_t time_ns,
                                std::uint32_t forward_stack) {
  switch (event.kind) {
    case EventKind::kAlloc:
      return allocate(event, sequence, time_ns, forward_stack);
    case EventKind::kFreeRequested:
      return request_free(event);
    case EventKind::kFreeCompleted:
      return complete_free(event);
    case EventKind::kSegmentAlloc:
      return add_segment(event);
    case EventKind::kSegmentFree:
      return remove_segment(event);
    case EventKind::kSegmentMap:
      return map(event);
    case EventKind::kSegmentUnmap:
      return unmap(event);
    case EventKind::kConfig:
      rules_.tells_segments = true;
      rules_.settings.read(definitions_->string(static_cast<std::uint32_t>(event.size)));
      return nullptr;
    case EventKind::kPoolRestore:
      rules_.restoring_thread = event.address != 0 ? event.thread : 0;
      return nullptr;
    case EventKind::kPoolUse:
      std::erase(rules_.left_pools, pool_of(event.location));
      if (event.address == 0) rules_.left_pools.push_back(pool_of(event.location));
      return nullptr;
    case EventKind::kPoolAllocator:
      rules_.own_pools.push_back(pool_of(event.location));
      return nullptr;
    case EventKind::kNoSplit:
      rules_.unsplit_pools.push_back(pool_of(event.location));
      return nullptr;
    default:
      return nullptr;
  }
}

bool DeviceMemory::splits(const Piece& piece, const Segment& segment, std::uint64_t wanted) const {
  bool is_expandable = rules_.settings.expandable_segments;
  if (!rules_.unsplit_pools.empty() || !rules_.own_pools.empty() || !rules_.left_pools.empty()) {
    const std::uint64_t pool = pool_of(segment.location);
    const auto has = [pool](const std::vector<std::uint64_t>& pools) {
      return std::find(pools.begin(), pools.end(), pool) != pools.end();
    };
    if (has(rules_.unsplit_pools)) return false;
    // Out of memory, torch takes from pools that are set aside for that, as if there were no expandable segments.
    if (has(rules_.own_pools) || has(rules_.left_pools)) is_expandable = false;
  }
  return rules_.settings.splits(piece.size, wanted, segment.is_large, is_expandable);
}

const char* DeviceMemory::allocate(const Event& event, std::uint64_t sequence, std::int64_t time_ns,
                                   std::uint32_t forward_stack) {
  const char* problem = nullptr;
  PieceIndex index = kNoPiece;
  if (const PieceIndex* found = piece_at_.find(event.address)) {
    index = *found;
  } else {
    // Of an allocator that tells no segments, each block stands alone.
    if (rules_.tells_segments) problem = "an allocation where no free block begins";
    Piece alone;
    alone.address = event.address;
    alone.size = event.size;
    index = new_piece(alone);
  }
  const std::uint32_t in_segment = pieces_[index].segment;
  const bool is_restored = rules_.restoring_thread != 0 && event.thread == rules_.restoring_thread;
  const std::uint64_t wanted = is_restored ? event.size : rules_.settings.rounded(event.size);
  if (in_segment != 0 && !segments_[in_segment].is_large_known) set_large(in_segment, wanted > kSmallRequest);
  if (pieces_[index].state == PieceState::kAllocated) ++history_.missed_frees;
  if (!history_.unmatched_requests.empty()) history_.unmatched_requests.erase(event.address);
  count(index, false);
  if (in_segment != 0) {
    const Piece& piece = pieces_[index];
    bool is_split = false;
    if (piece.state == PieceState::kUnmapped) {
      problem = "an allocation in memory that is not mapped";
      is_split = piece.size > wanted;
      totals_.reserved += is_split ? wanted : piece.size;
    } else if (piece.state != PieceState::kFree) {
      problem = "an allocation at an address that is in use";
    } else if (piece.size < wanted) {
      problem = "an allocation larger than the free block that it took";
    } else {
      is_split = is_restored ? piece.size > wanted : splits(piece, segments_[in_segment], wanted);
    }
    if (is_split) {
      const PieceIndex rest = split(index, wanted);
      pieces_[rest].requested = pieces_[index].requested;  // torch's block is the rest, the one handed out is new
      count(rest, true);
    }
  } else if (pieces_[index].state != PieceState::kUnused) {
    problem = "an allocation at an address that is in use";
  }
  Piece& piece = pieces_[index];
  if (in_segment == 0) piece.size = event.size;
  piece.state = PieceState::kAllocated;
  piece.requested = event.size;
  piece.birth = sequence;
  piece.birth_ns = time_ns;
  piece.stack = forward_stack != 0 ? forward_stack : event.stack;
  piece.is_of_backward = forward_stack != 0;
  piece.node_type = event.node_type;
  piece.thread = event.thread;
  count(index, true);
  if (piece.stack >= stacks_.size()) stacks_.resize(piece.stack + std::size_t{1});
  StackTotals& totals = stacks_[piece.stack];
  ++totals.allocations;
  totals.bytes += event.size;
  totals.largest = std::max(totals.largest, event.size);
  return problem;
}

const char* DeviceMemory::request_free(const Event& event) {
  const PieceIndex* found = piece_at_.find(event.address);
  if (!found || pieces_[*found].state != PieceState::kAllocated) return unmatched_free(event);
  count(*found, false);
  pieces_[*found].state = PieceState::kPendingFree;
  count(*found, true);
  return nullptr;
}

const char* DeviceMemory::unmatched_free(const Event& event) {
  const bool is_request = event.kind == EventKind::kFreeRequested;
  if (is_request) history_.unmatched_requests.insert(event.address);
  if (is_request || history_.unmatched_requests.erase(event.address) == 0) ++history_.unmatched_frees;
  // Nothing tells what an allocator without segments had before the trace began.
  return rules_.tells_segments || is_request ? "a free of a block that is not allocated" : nullptr;
}

const char* DeviceMemory::complete_free(const Event& event) {
  const PieceIndex* found = piece_at_.find(event.address);
  if (!found) return unmatched_free(event);
  const PieceIndex index = *found;
  const PieceState state = pieces_[index].state;
  if (state != PieceState::kPendingFree && state != PieceState::kAllocated) return unmatched_free(event);
  // The caching allocator always tells the request first.
  const char* problem = state == PieceState::kAllocated && rules_.tells_segments
                            ? "a free that completes without having been requested"
                            : nullptr;
  count(index, false);
  if (pieces_[index].segment == 0) {
    drop(index);
  } else {
    pieces_[index].state = PieceState::kFree;
    count(merged(index), true);
  }
  return problem;
}

PieceIndex DeviceMemory::new_piece(const Piece& piece) {
  PieceIndex index;
  if (unused_pieces_.empty()) {
    index = static_cast<PieceIndex>(pieces_.size());
    pieces_.push_back(piece);
  } else {
    index = unused_pieces_.back();
    unused_pieces_.pop_back();
    pieces_[index] = piece;
  }
  history_.is_touched = true;
  const auto [known, is_new] = piece_at_.insert(piece.address);
  if (!is_new) {
    // After a loss a block may stand there that was not known to lie in this segment: it would never be found again.
    const PieceIndex old = *known;
    if (pieces_[old].state == PieceState::kAllocated) ++history_.missed_frees;
    count(old, false);
    link(pieces_[old].previous, pieces_[old].next);
    pieces_[old].state = PieceState::kUnused;
    unused_pieces_.push_back(old);
  }
  *known = index;
  return index;
}

void DeviceMemory::drop(PieceIndex index) {
  piece_at_.erase(pieces_[index].address);
  pieces_[index].state = PieceState::kUnused;
  unused_pieces_.push_back(index);
}

void DeviceMemory::link(PieceIndex previous, PieceIndex next) {
  if (previous != kNoPiece) pieces_[previous].next = next;
  if (next != kNoPiece) pieces_[next].previous = previous;
}

// Of a piece that is not counted. It keeps its first `size` bytes; the rest becomes a new piece in the same state,
// which is returned, not counted either.
PieceIndex DeviceMemory::split(PieceIndex index, std::uint64_t size) {
  Piece rest;
  rest.address = pieces_[index].address + size;
  rest.size = pieces_[index].size - size;
  rest.segment = pieces_[index].segment;
  rest.state = pieces_[index].state;
  pieces_[index].size = size;
  const PieceIndex made = new_piece(rest);
  link(made, pieces_[index].next);
  link(index, made);
  return made;
}

// A piece that is not counted takes in its neighbours, where they too are free or unmapped as it is. Returns what has
// become of it, not counted either.
PieceIndex DeviceMemory::merged(PieceIndex index) {
  const PieceState state = pieces_[index].state;
  const PieceIndex next = pieces_[index].next;
  if (next != kNoPiece && pieces_[next].state == state) {
    count(next, false);
    pieces_[index].size += pieces_[next].size;
    link(index, pieces_[next].next);
    drop(next);
  }
  const PieceIndex previous = pieces_[index].previous;
  if (previous == kNoPiece || pieces_[previous].state != state) return index;
  count(previous, false);
  // The one whose address stays: that is noted already.
  pieces_[previous].size += pieces_[index].size;
  pieces_[previous].requested = pieces_[index].requested;
  link(previous, pieces_[index].next);
  drop(index);
  return previous;
}

void DeviceMemory::count(PieceIndex index, bool comes) {
  const Piece& piece = pieces_[index];
  const auto move = [comes](std::uint64_t& total, std::uint64_t bytes) { total += comes ? bytes : 0 - bytes; };
  switch (piece.state) {
    case PieceState::kAllocated:
      move(totals_.requested, piece.requested);
      move(totals_.allocated, piece.size);
      move(totals_.active, piece.size);
      move(totals_.blocks, 1);
      break;
    case PieceState::kPendingFree:
      move(totals_.active, piece.size);
      break;
    case PieceState::kFree:
      move(totals_.releasable, releasable_bytes(piece));
      comes ? free_sizes_.add(piece.size) : free_sizes_.remove(piece.size);
      if (segments_[piece.segment].is_expandable) {
        if (comes) {
          expandable_free_[piece.address] = index;
        } else {
          expandable_free_.erase(piece.address);
        }
      }
      break;
    default:
      break;
  }
}

// What empty_cache() would give back of a free piece: all or nothing of a segment, whole units of an expandable one.
std::uint64_t DeviceMemory::releasable_bytes(const Piece& piece) const {
  const Segment& segment = segments_[piece.segment];
  if (!segment.is_expandable) {
    return piece.previous == kNoPiece && piece.next == kNoPiece ? piece.size : 0;
  }
  const std::uint64_t unit = segment.unit;
  const bool is_behind = piece.address >= segment.origin;
  const std::uint64_t distance = (is_behind ? piece.address - segment.origin : segment.origin - piece.address) % unit;
  const std::uint64_t skipped = is_behind && distance != 0 ? unit - distance : distance;
  return skipped >= piece.size ? 0 : (piece.size - skipped) / unit * unit;
}

}  // namespace alloctrace
