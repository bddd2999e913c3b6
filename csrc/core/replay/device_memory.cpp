#include "device_memory.h"

#include <algorithm>

namespace alloctrace {
std::uint64_t DeviceMemory::pool_of(std::uint32_t location) const {
  const Location& where = definitions_->location(location);
  return where.pool_first << 32 ^ where.pool_second;  // MempoolId_t counts up in one of the two
}

const char* DeviceMemory::apply(Event& event, std::uint64_t sequence, std::int64_t time_ns,
                                std::uint32_t forward_stack) {
  ended_.alloc_sequence = UINT64_MAX;
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
        rules_.left_pools.insert(pool_of(event.location));
      } else {
        rules_.left_pools.erase(pool_of(event.location));
      }
      return nullptr;
    case EventKind::kPoolAllocator:
      rules_.own_pools.insert(pool_of(event.location));
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
  if (!rules_.unsplit_pools.empty() || !rules_.own_pools.empty() || !rules_.left_pools.empty()) {
    const std::uint64_t pool = pool_of(segment.location);
    if (rules_.unsplit_pools.contains(pool)) return false;
    // Out of memory, torch takes from pools that are set aside for that, as if there were no expandable segments.
    if (rules_.own_pools.contains(pool) || rules_.left_pools.contains(pool)) is_expandable = false;
  }
  return rules_.settings.splits(piece.size, wanted, segment.is_large, is_expandable);
}

// What made a block: a stack, else what stands for one (see Definitions).
void DeviceMemory::set_origin(Piece& piece, const Event& event, std::uint64_t sequence,
                              std::uint32_t forward_stack) const {
  piece.thread = event.thread;
  piece.is_older = false;
  piece.is_of_backward = false;
  piece.node_type = 0;
  piece.stack = definitions_->library_stack(sequence, event.address);
  if (piece.stack != 0) return;  // it has nothing to do with the line that happened to need it first
  piece.is_of_backward = forward_stack != 0;
  piece.node_type = event.node_type;
  piece.stack = forward_stack != 0 ? forward_stack : event.stack;
  if (piece.stack >= definitions_->frame_count()) piece.stack = 0;  // damage took its definition
  if (piece.stack == 0) piece.stack = definitions_->stack_of_node(event.node_type);
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
  if (const PieceIndex* found = piece_at_.find(event.address)) {
    index = *found;
  } else {
    // Where the allocator reports no segments, each block stands alone.
    if (rules_.reports_segments) problem = "an allocation where no free block begins";
    Piece alone;
    alone.address = event.address;
    alone.size = size;
    index = new_piece(alone);
  }
  const std::uint32_t in_segment = pieces_[index].segment;
  const bool is_restored = rules_.restoring_thread != 0 && event.thread == rules_.restoring_thread;
  const std::uint64_t wanted = is_restored ? std::max<std::uint64_t>(size, 1) : rules_.settings.rounded(size);
  if (in_segment != 0 && !segments_[in_segment].is_large_known) set_large(in_segment, index, wanted > kSmallRequest);
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
  if (in_segment == 0) piece.size = size;
  piece.state = PieceState::kAllocated;
  piece.requested = size;
  piece.alloc_sequence = sequence;
  piece.alloc_ns = time_ns;
  set_origin(piece, event, sequence, forward_stack);
  last_allocated_ = index;
  count(index, true);
  if (StackTotals* const totals = totals_of(piece.stack)) {
    ++totals->allocations;
    totals->bytes += size;
    totals->largest = std::max(totals->largest, size);
  }
  return size == event.size ? problem : "an allocation larger than any memory";
}

const char* DeviceMemory::request_free(Event& event) {
  const PieceIndex* found = piece_at_.find(event.address);
  if (!found || pieces_[*found].state != PieceState::kAllocated) return unmatched_free(event);
  if (event.size == 0) event.size = pieces_[*found].requested;
  end_life(pieces_[*found]);
  count(*found, false);
  pieces_[*found].state = PieceState::kPendingFree;
  count(*found, true);
  return nullptr;
}

const char* DeviceMemory::unmatched_free(const Event& event) {
  const bool is_request = event.kind == EventKind::kFreeRequested;
  if (is_request) history_.unmatched_requests.insert(event.address);
  if (is_request || history_.unmatched_requests.erase(event.address) == 0) ++history_.unmatched_frees;
  // What an allocator without segments had before the trace began is unknown.
  return rules_.reports_segments || is_request ? "a free of a block that is not allocated" : nullptr;
}

const char* DeviceMemory::complete_free(Event& event) {
  const PieceIndex* found = piece_at_.find(event.address);
  if (!found) return unmatched_free(event);
  const PieceIndex index = *found;
  const PieceState state = pieces_[index].state;
  if (state != PieceState::kPendingFree && state != PieceState::kAllocated) return unmatched_free(event);
  if (event.size == 0) event.size = pieces_[index].requested;
  if (state == PieceState::kAllocated) end_life(pieces_[index]);  // it was requested by the same event
  count(index, false);
  if (pieces_[index].segment == 0) {
    drop(index);
  } else {
    pieces_[index].state = PieceState::kFree;
    count(merged(index), true);
  }
  return nullptr;
}

const char* DeviceMemory::add_segment(const Event& event) {
  rules_.reports_segments = true;
  if (!is_possible(event)) return "a new segment of an impossible size";
  const char* problem = nullptr;
  if (piece_at_.find(event.address)) {
    problem = "a new segment where there is one";
    remove_segment(event);
  }
  // With expandable segments on, a private pool that is given a segment has an allocator of its own, and the setting
  // does not hold for it: torch would have mapped memory instead.
  const std::uint64_t pool = pool_of(event.location);
  if (rules_.settings.expandable_segments && pool != 0) rules_.own_pools.insert(pool);
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
  if (!found) return "a segment is freed that was not there";
  const Piece first = pieces_[*found];
  const char* problem = nullptr;
  if (first.state != PieceState::kFree || first.previous != kNoPiece || first.next != kNoPiece) {
    problem = "a segment is freed while blocks in it are in use";
  }
  if (first.segment == 0) return problem;
  // What is left of it in front still is of this segment.
  if (first.previous == kNoPiece) unused_segments_.push_back(first.segment);
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
  rules_.reports_segments = true;
  if (!is_possible(event)) return "a mapping of an impossible size";
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
      pieces_[index].size = event.size;  // closes the gap between two parts that a recording in mid-run began with
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
  if (!is_possible(event)) return "an unmapping of an impossible size";
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

// A segment's first allocation shows which of torch's two pools it belongs to.
void DeviceMemory::set_large(std::uint32_t index, PieceIndex in_it, bool is_large) {
  Segment& segment = segments_[index];
  segment.is_large_known = true;
  if (segment.is_large == is_large) return;
  // The unit has part in what is releasable.
  const auto move = [&](bool comes) {
    const auto add = [&](PieceIndex piece) {
      if (pieces_[piece].state != PieceState::kFree || pieces_[piece].segment != index) return;
      const std::uint64_t bytes = releasable_bytes(pieces_[piece]);
      totals_.releasable += comes ? bytes : 0 - bytes;
    };
    for (PieceIndex piece = in_it; piece != kNoPiece; piece = pieces_[piece].next) add(piece);
    if (in_it == kNoPiece) return;
    for (PieceIndex piece = pieces_[in_it].previous; piece != kNoPiece; piece = pieces_[piece].previous) add(piece);
  };
  move(false);
  segment.is_large = is_large;
  segment.unit = is_large ? rules_.settings.large_segment_size : kSmallSegment;
  move(true);
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

// For a piece that is not counted. It keeps its first `size` bytes; the rest becomes a new piece in the same state,
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
      move(other_mapped_, 1);
      break;
    case PieceState::kFree:
      move(other_mapped_, 1);
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
