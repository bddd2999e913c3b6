#include "device_memory.h"

#include <algorithm>

namespace alloctrace {
std::uint64_t DeviceMemory::pool_of(std::uint32_t location) const {
  const Location& where = definitions_->location(location);
  return where.pool_first << 32 ^ where.pool_second;  // one of the two numbers of a MempoolId_t is 0
}

const char* DeviceMemory::apply(Event& event, std::uint64_t sequence, std::int64_t time_ns,
                                std::uint32_t forward_stack) {
  last_freed_.alloc_sequence = UINT64_MAX;
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
      rules_.reports_segments = true;
      rules_.settings.read(definitions_->string(static_cast<std::uint32_t>(ConfigFields(event).settings)));
      return nullptr;
    case EventKind::kPoolRestore:
      rules_.restoring_thread = PoolSwitchFields(event).begins != 0 ? event.thread : 0;
      return nullptr;
    case EventKind::kPoolUse:
      if (PoolSwitchFields(event).begins == 0) {
        rules_.inactive_pools.insert(pool_of(event.location));
      } else {
        rules_.inactive_pools.erase(pool_of(event.location));
      }
      return nullptr;
    case EventKind::kPoolAllocator:
      rules_.custom_pools.insert(pool_of(event.location));
      return nullptr;
    case EventKind::kNoSplit:
      rules_.unsplit_pools.insert(pool_of(event.location));
      return nullptr;
    default:
      return nullptr;
  }
}

bool DeviceMemory::splits(const Piece& piece, const Segment& segment, std::uint64_t wanted) const {
  bool is_expandable = rules_.settings.expandable_segments;
  if (!rules_.unsplit_pools.empty() || !rules_.custom_pools.empty() || !rules_.inactive_pools.empty()) {
    const std::uint64_t pool = pool_of(segment.location);
    if (rules_.unsplit_pools.contains(pool)) return false;
    // Out of memory, torch allocates from inactive pools as if there were no expandable segments.
    if (rules_.custom_pools.contains(pool) || rules_.inactive_pools.contains(pool)) is_expandable = false;
  }
  return rules_.settings.splits(piece.size, wanted, segment.is_large, is_expandable);
}

// Set the origin of a block. If no Python stack allocated it, an id of Definitions takes the stack's place.
// `StackIndex.allocating_stacks` (reading/sites.py) makes the same choice for events.
void DeviceMemory::set_origin(Piece& piece, const Event& event, std::uint64_t sequence,
                              std::uint32_t forward_stack) const {
  piece.thread = event.thread;
  piece.is_older = false;
  piece.is_of_backward = false;
  piece.node_type = 0;
  piece.stack = definitions_->library_stack(sequence, event.address);
  if (piece.stack != 0) return;  // the line that needed it first is irrelevant
  piece.is_of_backward = forward_stack != 0;
  piece.node_type = event.node_type;
  piece.stack = forward_stack != 0 ? forward_stack : event.stack;
  if (piece.stack >= definitions_->frame_count()) piece.stack = 0;  // its definition is missing
  if (piece.stack == 0) piece.stack = definitions_->stack_of({StackOrigin::Kind::kNode, event.node_type});
}

StackTotals* DeviceMemory::totals_of(std::uint32_t stack) {
  if (stack >= Definitions::kFixedSyntheticStack) return nullptr;
  if (stack >= stacks_.size()) stacks_.resize(stack + std::size_t{1});
  return &stacks_[stack];
}

const char* DeviceMemory::allocate(const Event& event, std::uint64_t sequence, std::int64_t time_ns,
                                   std::uint32_t forward_stack) {
  const char* problem = nullptr;
  const std::uint64_t size = std::min(event.size, kMaxBlockBytes);
  PieceIndex index = kNoPiece;
  if (const PieceIndex* entry = piece_at_.find(event.address)) {
    index = *entry;
  } else {
    // Without segments, a block has no neighbours.
    if (rules_.reports_segments) problem = "an allocation where no free block begins";
    Piece block;
    block.address = event.address;
    block.size = size;
    index = add_piece(block);
  }
  const std::uint32_t segment = pieces_[index].segment;
  const bool is_restored = rules_.restoring_thread != 0 && event.thread == rules_.restoring_thread;
  const std::uint64_t wanted = is_restored ? std::max<std::uint64_t>(size, 1) : rules_.settings.rounded(size);
  if (segment != 0 && !segments_[segment].is_large_known) set_large(segment, index, wanted > kSmallRequest);
  if (pieces_[index].state == PieceState::kAllocated) ++history_.missed_frees;
  if (!history_.unmatched_requests.empty()) history_.unmatched_requests.erase(event.address);
  update_totals(index, false);
  if (segment != 0) {
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
      is_split = is_restored ? piece.size > wanted : splits(piece, segments_[segment], wanted);
    }
    if (is_split) {
      const PieceIndex rest = split(index, wanted);
      pieces_[rest].requested = pieces_[index].requested;  // in torch, the old Block becomes the rest
      update_totals(rest, true);
    }
  } else if (pieces_[index].state != PieceState::kUnused) {
    problem = "an allocation at an address that is in use";
  }
  Piece& piece = pieces_[index];
  if (segment == 0) piece.size = size;
  piece.state = PieceState::kAllocated;
  piece.requested = size;
  piece.alloc_sequence = sequence;
  piece.alloc_ns = time_ns;
  set_origin(piece, event, sequence, forward_stack);
  last_allocated_ = index;
  update_totals(index, true);
  if (StackTotals* const totals = totals_of(piece.stack)) {
    ++totals->allocations;
    totals->bytes += size;
    totals->largest = std::max(totals->largest, size);
  }
  return size == event.size ? problem : "an allocation larger than any memory";
}

const char* DeviceMemory::request_free(Event& event) {
  const PieceIndex* entry = piece_at_.find(event.address);
  if (!entry || pieces_[*entry].state != PieceState::kAllocated) return unmatched_free(event);
  if (event.size == 0) event.size = pieces_[*entry].requested;
  set_last_freed(pieces_[*entry]);
  update_totals(*entry, false);
  pieces_[*entry].state = PieceState::kPendingFree;
  update_totals(*entry, true);
  return nullptr;
}

const char* DeviceMemory::unmatched_free(const Event& event) {
  const bool is_request = event.kind == EventKind::kFreeRequested;
  if (is_request) history_.unmatched_requests.insert(event.address);
  if (is_request || history_.unmatched_requests.erase(event.address) == 0) ++history_.unmatched_frees;
  // Without segments, the block may be older than the trace.
  return rules_.reports_segments || is_request ? "a free of a block that is not allocated" : nullptr;
}

const char* DeviceMemory::complete_free(Event& event) {
  const PieceIndex* entry = piece_at_.find(event.address);
  if (!entry) return unmatched_free(event);
  const PieceIndex index = *entry;
  const PieceState state = pieces_[index].state;
  if (state != PieceState::kPendingFree && state != PieceState::kAllocated) return unmatched_free(event);
  if (event.size == 0) event.size = pieces_[index].requested;
  if (state == PieceState::kAllocated) set_last_freed(pieces_[index]);  // this event also requested the free
  update_totals(index, false);
  if (pieces_[index].segment == 0) {
    remove_piece(index);
  } else {
    pieces_[index].state = PieceState::kFree;
    update_totals(merge_neighbours(index), true);
  }
  return nullptr;
}

const char* DeviceMemory::add_segment(const Event& event) {
  rules_.reports_segments = true;
  if (!has_valid_range(event)) return "a new segment of an impossible size";
  const char* problem = nullptr;
  if (piece_at_.find(event.address)) {
    problem = "a new segment where there is one";
    remove_segment(event);
  }
  // With expandable segments, torch maps memory instead, unless a private pool has an allocator of its own.
  const std::uint64_t pool = pool_of(event.location);
  if (rules_.settings.expandable_segments && pool != 0) rules_.custom_pools.insert(pool);
  Piece piece;
  piece.address = event.address;
  piece.size = event.size;
  piece.segment = add_segment_record(event.address, event.size, event.location, false);
  piece.state = PieceState::kFree;
  update_totals(add_piece(piece), true);
  totals_.reserved += event.size;
  return problem;
}

const char* DeviceMemory::remove_segment(const Event& event) {
  const PieceIndex* entry = piece_at_.find(event.address);
  if (!entry) return "a segment is freed that was not there";
  const Piece first = pieces_[*entry];
  const char* problem = nullptr;
  if (first.state != PieceState::kFree || first.previous != kNoPiece || first.next != kNoPiece) {
    problem = "a segment is freed while blocks in it are in use";
  }
  if (first.segment == 0) return problem;
  // Pieces before the first one still use the segment.
  if (first.previous == kNoPiece) unused_segments_.push_back(first.segment);
  for (PieceIndex index = *entry; index != kNoPiece;) {
    const PieceIndex next = pieces_[index].next;
    update_totals(index, false);
    if (pieces_[index].state != PieceState::kUnmapped) totals_.reserved -= pieces_[index].size;
    remove_piece(index);
    index = next;
  }
  if (first.previous != kNoPiece) {
    update_totals(first.previous, false);
    pieces_[first.previous].next = kNoPiece;
    update_totals(first.previous, true);
  }
  return problem;
}

const char* DeviceMemory::map(const Event& event) {
  rules_.reports_segments = true;
  if (!has_valid_range(event)) return "a mapping of an impossible size";
  const std::uint64_t end = event.address + event.size;
  const PieceIndex* entry = piece_at_.find(event.address);
  PieceIndex index = entry ? *entry : kNoPiece;
  if (index == kNoPiece) {
    // torch maps from the beginning of an unmapped piece, so this range is new, or older than the trace.
    Piece piece;
    piece.address = event.address;
    piece.size = UINT64_MAX - event.address;
    piece.segment = add_segment_record(event.address, event.size, event.location, true);
    piece.state = PieceState::kUnmapped;
    index = add_piece(piece);
  } else if (pieces_[index].state != PieceState::kUnmapped) {
    return "memory that is mapped a second time";
  }
  if (pieces_[index].size < event.size) return "a mapping that reaches into mapped memory";
  if (pieces_[index].size > event.size) {
    const bool is_last = pieces_[index].next == kNoPiece;
    const PieceIndex* following = piece_at_.find(end);
    if (is_last && following && pieces_[*following].previous == kNoPiece &&
        segments_[pieces_[*following].segment].is_expandable) {
      pieces_[index].size = event.size;  // closes the gap between two parts listed by the first state
      link(index, *following);
    } else {
      split(index, event.size);
    }
  }
  pieces_[index].state = PieceState::kFree;
  totals_.reserved += event.size;
  update_totals(merge_neighbours(index), true);
  return nullptr;
}

const char* DeviceMemory::unmap(const Event& event) {
  if (!has_valid_range(event)) return "an unmapping of an impossible size";
  const std::uint64_t end = event.address + event.size;
  auto following_piece = expandable_free_.upper_bound(event.address);
  if (following_piece == expandable_free_.begin()) return "memory that is unmapped, but was not free";
  PieceIndex index = std::prev(following_piece)->second;
  if (pieces_[index].address + pieces_[index].size < end) return "memory that is unmapped, but was not free";
  update_totals(index, false);
  // torch reuses its Block for the unmapped part; the new Blocks on both sides have no requested bytes.
  if (pieces_[index].address < event.address) {
    const PieceIndex front = index;
    index = split(front, event.address - pieces_[front].address);
    std::swap(pieces_[index].requested, pieces_[front].requested);
    update_totals(front, true);
  }
  if (pieces_[index].size > event.size) update_totals(split(index, event.size), true);
  pieces_[index].state = PieceState::kUnmapped;
  totals_.reserved -= event.size;
  index = merge_neighbours(index);
  if (pieces_[index].previous == kNoPiece && pieces_[index].next == kNoPiece) {
    unused_segments_.push_back(pieces_[index].segment);
    remove_piece(index);
  }
  return nullptr;
}

// Set the pool of a segment: the first allocation in a segment shows which of torch's two pools it belongs to.
void DeviceMemory::set_large(std::uint32_t index, PieceIndex start, bool is_large) {
  Segment& segment = segments_[index];
  segment.is_large_known = true;
  if (segment.is_large == is_large) return;
  // The releasable bytes depend on the unit.
  const auto update_releasable = [&](bool is_added) {
    const auto update = [&](PieceIndex piece) {
      if (pieces_[piece].state != PieceState::kFree || pieces_[piece].segment != index) return;
      const std::uint64_t bytes = releasable_bytes(pieces_[piece]);
      totals_.releasable += is_added ? bytes : 0 - bytes;
    };
    for (PieceIndex piece = start; piece != kNoPiece; piece = pieces_[piece].next) update(piece);
    if (start == kNoPiece) return;
    for (PieceIndex piece = pieces_[start].previous; piece != kNoPiece; piece = pieces_[piece].previous) update(piece);
  };
  update_releasable(false);
  segment.is_large = is_large;
  segment.unit = rules_.settings.mapping_unit(is_large);
  update_releasable(true);
}

std::uint32_t DeviceMemory::add_segment_record(std::uint64_t origin, std::uint64_t size, std::uint32_t location,
                                               bool is_expandable) {
  Segment segment;
  segment.origin = origin;
  segment.location = location;
  segment.is_expandable = is_expandable;
  segment.is_large = is_expandable ? size % rules_.settings.large_segment_size == 0 : size > kSmallSegment;
  segment.unit = rules_.settings.mapping_unit(segment.is_large);
  if (unused_segments_.empty()) {
    segments_.push_back(segment);
    return static_cast<std::uint32_t>(segments_.size() - 1);
  }
  const std::uint32_t index = unused_segments_.back();
  unused_segments_.pop_back();
  segments_[index] = segment;
  return index;
}

PieceIndex DeviceMemory::add_piece(const Piece& piece, PieceIndex uncounted) {
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
  const auto [entry, is_new] = piece_at_.insert(piece.address);
  // After lost events, a stale piece may have this address. It loses its entry, and must not stay allocated.
  if (!is_new) remove_stale(*entry, uncounted);
  *entry = index;
  return index;
}

// Remove a piece except for its entry in the index, which a new piece takes. `uncounted`: a piece not in the totals.
void DeviceMemory::remove_stale(PieceIndex index, PieceIndex uncounted) {
  const Piece stale = pieces_[index];
  const auto update_neighbours = [&](bool is_added) {
    for (const PieceIndex neighbour : {stale.previous, stale.next}) {
      if (neighbour != kNoPiece && neighbour != uncounted) update_totals(neighbour, is_added);
    }
  };
  if (stale.state == PieceState::kAllocated) ++history_.missed_frees;
  if (stale.segment != 0 && stale.state != PieceState::kUnmapped) totals_.reserved -= stale.size;
  update_totals(index, false);
  update_neighbours(false);
  link(stale.previous, stale.next);
  update_neighbours(true);
  pieces_[index].state = PieceState::kUnused;
  unused_pieces_.push_back(index);
}

void DeviceMemory::remove_piece(PieceIndex index) {
  piece_at_.erase(pieces_[index].address);
  pieces_[index].state = PieceState::kUnused;
  unused_pieces_.push_back(index);
}

void DeviceMemory::link(PieceIndex previous, PieceIndex next) {
  if (previous != kNoPiece) pieces_[previous].next = next;
  if (next != kNoPiece) pieces_[next].previous = previous;
}

// Cut a piece to its first `size` bytes, and return a new piece with the rest. Neither is in the totals.
PieceIndex DeviceMemory::split(PieceIndex index, std::uint64_t size) {
  Piece rest;
  rest.address = pieces_[index].address + size;
  rest.size = pieces_[index].size - size;
  rest.segment = pieces_[index].segment;
  rest.state = pieces_[index].state;
  pieces_[index].size = size;
  const PieceIndex rest_index = add_piece(rest, index);
  link(rest_index, pieces_[index].next);
  link(index, rest_index);
  return rest_index;
}

// Merge a piece with its neighbours in the same state, and return the merged piece. Neither is in the totals.
PieceIndex DeviceMemory::merge_neighbours(PieceIndex index) {
  const PieceState state = pieces_[index].state;
  const PieceIndex next = pieces_[index].next;
  if (next != kNoPiece && pieces_[next].state == state) {
    update_totals(next, false);
    pieces_[index].size += pieces_[next].size;
    link(index, pieces_[next].next);
    remove_piece(next);
  }
  const PieceIndex previous = pieces_[index].previous;
  if (previous == kNoPiece || pieces_[previous].state != state) return index;
  update_totals(previous, false);
  // The previous piece stays, since the merged piece has its address.
  pieces_[previous].size += pieces_[index].size;
  pieces_[previous].requested = pieces_[index].requested;
  link(previous, pieces_[index].next);
  remove_piece(index);
  return previous;
}

void DeviceMemory::update_totals(PieceIndex index, bool is_added) {
  const Piece& piece = pieces_[index];
  const auto update = [is_added](std::uint64_t& total, std::uint64_t bytes) { total += is_added ? bytes : 0 - bytes; };
  switch (piece.state) {
    case PieceState::kAllocated:
      update(totals_.requested, piece.requested);
      update(totals_.allocated, piece.size);
      update(totals_.active, piece.size);
      update(totals_.blocks, 1);
      break;
    case PieceState::kPendingFree:
      update(totals_.active, piece.size);
      update(other_mapped_, 1);
      break;
    case PieceState::kFree:
      update(other_mapped_, 1);
      update(totals_.releasable, releasable_bytes(piece));
      is_added ? free_sizes_.add(piece.size) : free_sizes_.remove(piece.size);
      if (segments_[piece.segment].is_expandable) {
        if (is_added) {
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

// Return the bytes of a free piece that empty_cache() would release: a complete segment, or complete units.
std::uint64_t DeviceMemory::releasable_bytes(const Piece& piece) const {
  const Segment& segment = segments_[piece.segment];
  if (!segment.is_expandable) {
    return piece.previous == kNoPiece && piece.next == kNoPiece ? piece.size : 0;
  }
  const std::uint64_t unit = segment.unit;
  const bool is_after = piece.address >= segment.origin;
  const std::uint64_t distance = (is_after ? piece.address - segment.origin : segment.origin - piece.address) % unit;
  const std::uint64_t skipped = is_after && distance != 0 ? unit - distance : distance;
  return skipped >= piece.size ? 0 : (piece.size - skipped) / unit * unit;
}

}  // namespace alloctrace
