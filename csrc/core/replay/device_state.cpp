// The complete state of a device: lists, checkpoints, comparison with a state in the trace, and replacement by it.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <iterator>

#include "device_memory.h"

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

void DeviceMemory::list(std::vector<SegmentView>& segments, std::vector<Piece>& blocks) const {
  const auto is_mapped = [](const Piece& piece) {
    return piece.state != PieceState::kUnused && piece.state != PieceState::kUnmapped;
  };
  blocks.reserve(pieces_.size() - unused_pieces_.size());
  std::vector<const Piece*> heads;
  for (const Piece& piece : pieces_) {
    if (!is_mapped(piece)) continue;
    if (piece.previous == kNoPiece || !is_mapped(pieces_[piece.previous])) heads.push_back(&piece);
  }
  std::sort(heads.begin(), heads.end(), [](const Piece* a, const Piece* b) { return a->address < b->address; });
  for (const Piece* piece : heads) {
    const Segment& segment = segments_[piece->segment];
    SegmentView view;
    view.address = piece->address;
    view.location = segment.location;
    view.is_large = segment.is_large;
    view.is_expandable = segment.is_expandable;
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

bool DeviceMemory::rebuild(std::uint64_t reserved) {
  bool is_sound = true;
  totals_ = {};
  other_mapped_ = 0;
  totals_.reserved = reserved;
  unused_pieces_.clear();
  piece_at_.clear();
  piece_at_.reserve(pieces_.size());
  for (PieceIndex index = 0; index < pieces_.size(); ++index) {
    if (pieces_[index].state == PieceState::kUnused) {
      unused_pieces_.push_back(index);
      continue;
    }
    const auto [entry, is_new] = piece_at_.insert(pieces_[index].address);
    *entry = index;
    is_sound &= is_new;
  }
  expandable_free_.clear();
  free_sizes_ = {};
  add_all_to_totals();
#ifdef ALLOCTRACE_CHECKS
  reserved_by_no_piece_ = reserved - mapped_bytes();
#endif
  return is_sound;
}

// Call once all pieces are linked to their neighbours.
void DeviceMemory::add_all_to_totals() {
  for (PieceIndex index = 0; index < pieces_.size(); ++index) update_totals(index, true);
}

std::optional<DeviceMemory> DeviceMemory::build_from_state(const std::vector<Event>& state, std::uint64_t sequence,
                                                           std::int64_t time_ns, bool begins) const {
  const std::uint64_t state_sequence = sequence;
  DeviceMemory memory(device_type_, device_index_, *definitions_);
  memory.rules_.settings = rules_.settings;  // these determine which segments are large
  std::vector<PieceIndex> last_of_expandable;
  std::uint64_t address = 0, end = 0;
  PieceIndex last = kNoPiece;
  for (const Event& event : state) {
    if (event.kind == EventKind::kStateSegment) {
      if (address != end || !has_valid_range(event)) return std::nullopt;
      address = event.address;
      end = address + event.size;
      const std::uint64_t flags = StateSegmentFields(event).flags;
      const std::uint32_t index =
          memory.add_segment_record(address, event.size, event.location, (flags & kExpandableSegment) != 0);
      memory.set_large(index, kNoPiece, (flags & kLargeSegment) != 0);
      memory.totals_.reserved += event.size;
      last = kNoPiece;
      continue;
    }
    if (event.address != address || event.size == 0 || event.size > end - address || memory.piece_at_.find(address)) {
      return std::nullopt;
    }
    Piece piece;
    piece.address = event.address;
    piece.size = event.size;
    const StateBlockFields reported(event);
    piece.requested = std::min(reported.requested, kMaxBlockBytes);
    piece.segment = static_cast<std::uint32_t>(memory.segments_.size() - 1);
    piece.alloc_sequence = ++sequence;  // unique; other devices' events may come between those of a state
    piece.alloc_ns = time_ns;
    piece.state = reported.state == kBlockAllocated     ? PieceState::kAllocated
                  : reported.state == kBlockPendingFree ? PieceState::kPendingFree
                                                        : PieceState::kFree;
    const PieceIndex* existing = piece_at_.find(event.address);
    if (existing && piece.state != PieceState::kFree && pieces_[*existing].state == piece.state) {
      piece.alloc_sequence = pieces_[*existing].alloc_sequence;
      piece.alloc_ns = pieces_[*existing].alloc_ns;
      piece.stack = pieces_[*existing].stack;
      piece.is_of_backward = pieces_[*existing].is_of_backward;
      piece.node_type = pieces_[*existing].node_type;
      piece.thread = pieces_[*existing].thread;
      piece.is_older = pieces_[*existing].is_older;
    } else if (piece.state != PieceState::kFree) {
      const std::uint32_t library = definitions_->library_stack(state_sequence, event.address);
      piece.is_older = begins;
      piece.stack = begins ? definitions_->stack_of({StackOrigin::Kind::kBeforeRecording}) : 0;
      if (event.stack != 0 && event.stack < definitions_->frame_count()) piece.stack = event.stack;
      if (library != 0) piece.stack = library;
    }
    const PieceIndex index = memory.add_piece(piece);
    memory.link(last, index);
    last = index;
    address += event.size;
    if (address == end && memory.segments_.back().is_expandable) last_of_expandable.push_back(index);
  }
  if (address != end) return std::nullopt;
  for (const PieceIndex index : last_of_expandable) {
    const Piece& piece = memory.pieces_[index];
    Piece rest;
    rest.address = piece.address + piece.size;
    rest.size = UINT64_MAX - rest.address;
    rest.segment = piece.segment;
    rest.state = PieceState::kUnmapped;
    if (!memory.piece_at_.find(rest.address)) memory.link(index, memory.add_piece(rest));
  }
  memory.add_all_to_totals();
  return memory;
}

void DeviceMemory::replace_with(DeviceMemory&& described) {
  described.rules_ = std::move(rules_);
  described.rules_.reports_segments = true;
  described.stacks_ = std::move(stacks_);
  history_.is_touched |= described.history_.is_touched;
  described.history_ = std::move(history_);
  *this = std::move(described);
}

bool DeviceMemory::equals(const std::vector<Event>& state) const {
  const auto is_mapped = [this](PieceIndex index) {
    return index != kNoPiece && pieces_[index].state != PieceState::kUnused &&
           pieces_[index].state != PieceState::kUnmapped;
  };
  std::uint64_t listed_blocks = 0, min_address = 0;
  PieceIndex next = kNoPiece;
  for (const Event& event : state) {
    if (event.kind == EventKind::kStateSegment) {
      const PieceIndex* const entry = piece_at_.find(event.address);
      if (is_mapped(next) || event.address < min_address || !entry || !is_mapped(*entry)) return false;
      const Piece& first = pieces_[*entry];
      const Segment& segment = segments_[first.segment];
      const std::uint64_t flags =
          (segment.is_large ? kLargeSegment : 0) | (segment.is_expandable ? kExpandableSegment : 0);
      if (first.segment == 0 || is_mapped(first.previous) || segment.location != event.location ||
          StateSegmentFields(event).flags != flags) {
        return false;
      }
      std::uint64_t size = 0;
      for (PieceIndex at = *entry; is_mapped(at); at = pieces_[at].next) size += pieces_[at].size;
      if (size != event.size) return false;
      next = *entry;
      min_address = event.address + 1;
      continue;
    }
    if (!is_mapped(next)) return false;
    const Piece& piece = pieces_[next];
    const StateBlockFields reported(event);
    if (piece.address != event.address || piece.size != event.size || block_state(piece.state) != reported.state ||
        (piece.state != PieceState::kFree && piece.requested != reported.requested)) {
      return false;
    }
    ++listed_blocks;
    next = piece.next;
  }
  return !is_mapped(next) && listed_blocks == totals_.blocks + other_mapped_;
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
