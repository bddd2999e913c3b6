#include "device_memory.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <iterator>

namespace alloctrace {
namespace {

template <typename... Values>
std::string sentence(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

const char* name_of(std::uint64_t state) {
  switch (state) {
    case kBlockInactive:
      return "inactive";
    case kBlockAllocated:
      return "allocated";
    case kBlockPendingFree:
      return "pending free";
    default:
      return "unknown";
  }
}

BlockState block_state(PieceState state) {
  switch (state) {
    case PieceState::kAllocated:
      return kBlockAllocated;
    case PieceState::kPendingFree:
      return kBlockPendingFree;
    default:
      return kBlockInactive;
  }
}

}  // namespace

std::uint64_t DeviceMemory::pool_of(std::uint32_t location) const {
  const Location& where = definitions_->location(location);
  return where.pool_first << 32 ^ where.pool_second;  // MempoolId_t counts up in one of the two
}

const char* DeviceMemory::apply(Event& event, std::uint64_t sequence, std::int64_t time_ns,
                                std::uint32_t forward_stack) {
  ended_.birth = UINT64_MAX;
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
      std::erase(rules_.left_pools, pool_of(event.location));
      if (PoolSwitchFields(event).begins == 0) rules_.left_pools.push_back(pool_of(event.location));
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
  if (piece.stack >= definitions_->stack_before_recording()) piece.stack = 0;  // damage took its definition
  if (piece.stack == 0) piece.stack = definitions_->stack_of_node(event.node_type);
}

const char* DeviceMemory::allocate(const Event& event, std::uint64_t sequence, std::int64_t time_ns,
                                   std::uint32_t forward_stack) {
  const char* problem = nullptr;
  PieceIndex index = kNoPiece;
  if (const PieceIndex* found = piece_at_.find(event.address)) {
    index = *found;
  } else {
    // Where the allocator reports no segments, each block stands alone.
    if (rules_.reports_segments) problem = "an allocation where no free block begins";
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
  set_origin(piece, event, sequence, forward_stack);
  count(index, true);
  if (piece.stack >= stacks_.size()) stacks_.resize(piece.stack + std::size_t{1});
  StackTotals& totals = stacks_[piece.stack];
  ++totals.allocations;
  totals.bytes += event.size;
  if (event.size > totals.largest) {
    totals.largest = event.size;
    ++totals.records;
    totals.last_record = sequence;
  }
  return problem;
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
  if (state == PieceState::kAllocated) end_life(pieces_[index]);
  // The caching allocator always reports the request first.
  const char* problem = state == PieceState::kAllocated && rules_.reports_segments
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

const char* DeviceMemory::add_segment(const Event& event) {
  rules_.reports_segments = true;
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
  if (!found) return "a segment is freed that was not there";
  const Piece first = pieces_[*found];
  const char* problem = nullptr;
  if (first.state != PieceState::kFree || first.previous != kNoPiece || first.next != kNoPiece) {
    problem = "a segment is freed while blocks in it are in use";
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
  rules_.reports_segments = true;
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

void DeviceMemory::list(std::vector<SegmentView>& segments, std::vector<Piece>& blocks) const {
  const auto is_mapped = [](const Piece& piece) {
    return piece.state != PieceState::kUnused && piece.state != PieceState::kUnmapped;
  };
  blocks.reserve(pieces_.size() - unused_pieces_.size());
  std::vector<const Piece*> first;
  for (const Piece& piece : pieces_) {
    if (!is_mapped(piece)) continue;
    if (piece.previous == kNoPiece || !is_mapped(pieces_[piece.previous])) first.push_back(&piece);
  }
  std::sort(first.begin(), first.end(), [](const Piece* a, const Piece* b) { return a->address < b->address; });
  for (const Piece* piece : first) {
    const Segment& of = segments_[piece->segment];
    SegmentView view;
    view.address = piece->address;
    view.location = of.location;
    view.is_large = of.is_large;
    view.is_expandable = of.is_expandable;
    view.first_block = blocks.size();
    for (;; piece = &pieces_[piece->next]) {
      blocks.push_back(*piece);
      view.total_size += piece->size;
      if (piece->state == PieceState::kAllocated) view.allocated_size += piece->size;
      if (piece->state != PieceState::kFree) {
        view.active_size += piece->size;
        view.requested_size += piece->requested;
      }
      if (piece->next == kNoPiece || !is_mapped(pieces_[piece->next])) break;
    }
    view.block_count = blocks.size() - view.first_block;
    if (blocks[view.first_block].segment != 0) segments.push_back(view);
  }
}

PackedMemory DeviceMemory::packed() const {
  PackedMemory packed{
      device_type_,     device_index_, rules_, {pieces_.begin(), pieces_.end()}, segments_, unused_segments_,
      totals_.reserved, history_,      {}};
  for (std::uint32_t stack = 0; stack < stacks_.size(); ++stack) {
    if (stacks_[stack].allocations != 0) packed.stacks.emplace_back(stack, stacks_[stack]);
  }
  return packed;
}

void DeviceMemory::unpack(const PackedMemory& packed) {
  device_type_ = packed.device_type;
  device_index_ = packed.device_index;
  rules_ = packed.rules;
  pieces_.assign(packed.pieces.begin(), packed.pieces.end());
  segments_ = packed.segments;
  unused_segments_ = packed.unused_segments;
  totals_ = {};
  totals_.reserved = packed.reserved;
  unused_pieces_.clear();
  piece_at_.clear();
  piece_at_.reserve(pieces_.size());
  for (PieceIndex index = 0; index < pieces_.size(); ++index) {
    if (pieces_[index].state == PieceState::kUnused) {
      unused_pieces_.push_back(index);
    } else {
      *piece_at_.insert(pieces_[index].address).first = index;
    }
  }
  expandable_free_.clear();
  free_sizes_ = {};
  count_all();
  history_ = packed.history;
  stacks_.assign(packed.stacks.empty() ? 0 : packed.stacks.back().first + std::size_t{1}, {});
  for (const auto& [stack, totals] : packed.stacks) stacks_[stack] = totals;
}

// Once all pieces know their neighbours.
void DeviceMemory::count_all() {
  for (PieceIndex index = 0; index < pieces_.size(); ++index) count(index, true);
}

bool DeviceMemory::adopt(const std::vector<Event>& state, std::uint64_t sequence, std::int64_t time_ns, bool begins) {
  const std::uint64_t state_sequence = sequence;
  DeviceMemory made(device_type_, device_index_, *definitions_);
  made.rules_ = rules_;
  made.rules_.reports_segments = true;
  std::vector<PieceIndex> last_of_expandable;
  std::uint64_t address = 0, end = 0;
  PieceIndex last = kNoPiece;
  for (const Event& event : state) {
    if (event.kind == EventKind::kStateSegment) {
      if (address != end) return false;
      address = event.address;
      end = address + event.size;
      const std::uint64_t flags = StateSegmentFields(event).flags;
      const std::uint32_t index =
          made.add_segment_record(address, event.size, event.location, (flags & kExpandableSegment) != 0);
      made.set_large(index, (flags & kLargeSegment) != 0);
      made.totals_.reserved += event.size;
      last = kNoPiece;
      continue;
    }
    if (event.address != address || event.size == 0 || event.size > end - address || made.piece_at_.find(address)) {
      return false;
    }
    Piece piece;
    piece.address = event.address;
    piece.size = event.size;
    const StateBlockFields reported(event);
    piece.requested = reported.requested;
    piece.segment = static_cast<std::uint32_t>(made.segments_.size() - 1);
    piece.birth = ++sequence;  // its own, or near it where events of other devices stand between: no two have the same
    piece.birth_ns = time_ns;
    piece.state = reported.state == kBlockAllocated     ? PieceState::kAllocated
                  : reported.state == kBlockPendingFree ? PieceState::kPendingFree
                                                        : PieceState::kFree;
    const PieceIndex* known = piece_at_.find(event.address);
    if (known && piece.state != PieceState::kFree && pieces_[*known].state == piece.state) {
      piece.birth = pieces_[*known].birth;
      piece.birth_ns = pieces_[*known].birth_ns;
      piece.stack = pieces_[*known].stack;
      piece.is_of_backward = pieces_[*known].is_of_backward;
      piece.node_type = pieces_[*known].node_type;
      piece.thread = pieces_[*known].thread;
      piece.is_older = pieces_[*known].is_older;
    } else if (piece.state != PieceState::kFree) {
      const std::uint32_t library = definitions_->library_stack(state_sequence, event.address);
      piece.is_older = begins;
      piece.stack = library != 0 ? library : begins ? definitions_->stack_before_recording() : 0;
    }
    const PieceIndex index = made.new_piece(piece);
    made.link(last, index);
    last = index;
    address += event.size;
    if (address == end && made.segments_.back().is_expandable) last_of_expandable.push_back(index);
  }
  if (address != end) return false;
  for (const PieceIndex index : last_of_expandable) {
    const Piece& piece = made.pieces_[index];
    Piece rest;
    rest.address = piece.address + piece.size;
    rest.size = UINT64_MAX - rest.address;
    rest.segment = piece.segment;
    rest.state = PieceState::kUnmapped;
    if (!made.piece_at_.find(rest.address)) made.link(index, made.new_piece(rest));
  }
  made.count_all();
  made.stacks_ = std::move(stacks_);
  history_.is_touched |= made.history_.is_touched;
  made.history_ = std::move(history_);
  *this = std::move(made);
  return true;
}

std::string DeviceMemory::difference_to(const std::vector<Event>& state) const {
  std::vector<SegmentView> segments;
  std::vector<Piece> blocks;
  list(segments, blocks);
  std::size_t in_segments = 0;
  for (const SegmentView& view : segments) in_segments += view.block_count;
  if (in_segments != blocks.size()) return "a block that lies in no segment";
  std::size_t segment = 0, block = 0, block_end = 0;
  for (const Event& event : state) {
    if (event.kind == EventKind::kStateSegment) {
      if (block != block_end)
        return sentence("a block at 0x%" PRIx64 " that is not in the state", blocks[block].address);
      if (segment == segments.size() || segments[segment].address > event.address) {
        return sentence("no segment at 0x%" PRIx64, event.address);
      }
      const SegmentView& view = segments[segment++];
      if (view.address < event.address) {
        return sentence("a segment at 0x%" PRIx64 " that is not in the state", view.address);
      }
      if (view.total_size != event.size) {
        return sentence("the segment at 0x%" PRIx64 " has %" PRIu64 " bytes, in the state %" PRIu64, view.address,
                        view.total_size, event.size);
      }
      const std::uint64_t flags = (view.is_large ? kLargeSegment : 0) | (view.is_expandable ? kExpandableSegment : 0);
      if (view.location != event.location || flags != StateSegmentFields(event).flags) {
        return sentence("the segment at 0x%" PRIx64 " is of another stream, pool or kind", view.address);
      }
      block = view.first_block;
      block_end = block + view.block_count;
      continue;
    }
    if (block == block_end || blocks[block].address != event.address) {
      return sentence("no block at 0x%" PRIx64, event.address);
    }
    const Piece& piece = blocks[block++];
    if (piece.size != event.size) {
      return sentence("the block at 0x%" PRIx64 " has %" PRIu64 " bytes, in the state %" PRIu64, piece.address,
                      piece.size, event.size);
    }
    const StateBlockFields reported(event);
    if (block_state(piece.state) != reported.state) {
      return sentence("the block at 0x%" PRIx64 " is %s, in the state %s", piece.address,
                      name_of(block_state(piece.state)), name_of(reported.state));
    }
    if (piece.state != PieceState::kFree && piece.requested != reported.requested) {
      return sentence("the block at 0x%" PRIx64 " was requested with %" PRIu64 " bytes, in the state %" PRIu64,
                      piece.address, piece.requested, reported.requested);
    }
  }
  if (block != block_end) return sentence("a block at 0x%" PRIx64 " that is not in the state", blocks[block].address);
  if (segment != segments.size()) {
    return sentence("a segment at 0x%" PRIx64 " that is not in the state", segments[segment].address);
  }
  return {};
}

}  // namespace alloctrace
