// The memory of one device at a position of a trace: its segments, and the blocks that tile them. A mirror of the
// native caching allocator's own lists, updated by the events of the trace.
//
// Each event is constant work: blocks are found by their address and know their neighbours. (Free blocks of expandable
// segments are also kept in order, for unmapping begins anywhere in one.)
//
// An event that contradicts the mirror is reported, and the mirror follows the event.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../base/address_map.h"
#include "../base/pages.h"
#include "../format/definitions.h"
#include "../format/event_fields.h"
#include "../format/format.h"
#include "allocator_rules.h"
#include "fold_codec.h"
#include "free_sizes.h"
#include "long_lives.h"
#include "packed_pieces.h"
#include "piece.h"

namespace alloctrace {

// What one cudaMalloc returned, or one expandable range of addresses. Entry 0 stands for no segment: blocks of
// allocators that report none.
struct Segment {
  std::uint64_t origin = 0;            // if expandable: an address from which units of mapping are counted
  std::uint64_t unit = kSmallSegment;  // of mapping
  std::uint32_t location = 0;
  bool is_large = false;
  bool is_large_known = false;  // by a request; else guessed from the size
  bool is_expandable = false;
};

// Bytes, except for `blocks`. The definitions are those of docs/reading.md, "What the bytes mean".
struct MemoryTotals {
  std::uint64_t requested = 0, allocated = 0, active = 0, reserved = 0, releasable = 0;
  std::uint64_t blocks = 0;  // allocated ones

  std::uint64_t cached() const { return reserved > active ? reserved - active : 0; }
  std::uint64_t stranded() const { return cached() > releasable ? cached() - releasable : 0; }
};

// What a stack has allocated so far. Bytes are requested bytes.
struct StackTotals {
  std::uint64_t allocations = 0, bytes = 0, largest = 0;
};

// A segment as torch.cuda.memory_snapshot() lists it: an expandable one as one row for each part that is mapped without
// a gap.
struct SegmentView {
  std::uint64_t address = 0, total_size = 0, allocated_size = 0, active_size = 0, requested_size = 0;
  std::uint32_t location = 0;
  bool is_large = false, is_expandable = false;
  std::size_t first_block = 0, block_count = 0;  // in the list of blocks
};

// What is known so far of how the device's allocator works.
struct DeviceRules {
  AllocatorSettings settings;
  bool reports_segments = false;
  std::set<std::uint64_t> unsplit_pools;  // no_split was set
  std::uint32_t restoring_thread = 0;     // it restores a pool's blocks; 0: no thread does
  std::set<std::uint64_t> left_pools;     // no longer in use: torch allocates there only as a last resort
  std::set<std::uint64_t> own_pools;      // have an allocator of their own: never expandable

  std::size_t bytes() const {
    constexpr std::size_t kOfEach = 48;
    return sizeof *this + (unsplit_pools.size() + left_pools.size() + own_pools.size()) * kOfEach;
  }
};

// What was seen of a device so far.
struct DeviceHistory {
  bool is_touched = false;  // a block of the device was known
  // Frees of blocks whose alloc is not in the trace: made before it began, or lost.
  std::uint64_t unmatched_frees = 0;
  // Allocs at an address that was live: the free between them is missing. The old block counts as freed.
  std::uint64_t missed_frees = 0;
  std::set<std::uint64_t> unmatched_requests;  // their completion is not counted again
};

// A DeviceMemory in a checkpoint: only what cannot be rebuilt from the rest.
struct PackedMemory {
  std::int32_t device_type = 0, device_index = 0;
  DeviceRules rules;
  PackedPieces pieces;
  std::vector<Segment> segments;
  std::vector<std::uint32_t> unused_segments;
  std::uint64_t reserved = 0;
  DeviceHistory history;
  std::vector<std::pair<std::uint32_t, StackTotals>> stacks;  // those that have allocated, with their ids

  std::size_t bytes() const {
    constexpr std::size_t kOfRequest = 48;
    return sizeof *this + rules.bytes() + pieces.bytes() + segments.capacity() * sizeof(Segment) +
           unused_segments.capacity() * sizeof unused_segments[0] + history.unmatched_requests.size() * kOfRequest +
           stacks.capacity() * sizeof stacks[0];
  }
};

// Whether memory can be there: the ends of its addresses do not overflow.
inline bool is_possible(const Event& event) {
  return event.size != 0 && event.size <= kMaxBlockBytes && event.address <= UINT64_MAX - event.size;
}

class DeviceMemory {
 public:
  DeviceMemory(std::int32_t device_type, std::int32_t device_index, const Definitions& definitions)
      : definitions_(&definitions), device_type_(device_type), device_index_(device_index) {}

  std::int32_t device_type() const { return device_type_; }
  std::int32_t device_index() const { return device_index_; }

  // Takes in the next event of this device, and fills in the size of a free where the trace does not have it.
  // forward_stack: of an allocation, see ForwardStacks. nullptr, or in a few words what contradicts the state before.
  const char* apply(Event& event, std::uint64_t sequence, std::int64_t time_ns, std::uint32_t forward_stack);

  const MemoryTotals& totals() const { return totals_; }
  std::uint64_t largest_free() { return free_sizes_.largest(); }
  // No block of this device was ever known.
  bool is_untouched() const { return !history_.is_touched; }
  // Whether its allocator reports segments: only then does reserved, and what follows from it, mean anything.
  bool reports_segments() const { return rules_.reports_segments; }

  // What each stack has allocated, by its id.
  const std::vector<StackTotals>& stacks() const { return stacks_; }
  const DeviceHistory& history() const { return history_; }
  // The block that the last event gave up.
  const FreedBlock& ended() const { return ended_; }
  // The piece of the last allocation. A piece keeps its number as long as it is allocated.
  PieceIndex last_allocated() const { return last_allocated_; }
  const Piece& piece(PieceIndex index) const { return pieces_[index]; }
  std::size_t piece_count() const { return pieces_.size(); }
  PieceIndex index_of(const Piece& piece) const { return static_cast<PieceIndex>(&piece - pieces_.data()); }
  // The block that is allocated at this address, or nullptr.
  const Piece* allocated_at(std::uint64_t address) const {
    const PieceIndex* const found = piece_at_.find(address);
    return found && pieces_[*found].state == PieceState::kAllocated ? &pieces_[*found] : nullptr;
  }
  template <typename Visit>
  void for_each_allocated(Visit visit) const {
    for (const Piece& piece : pieces_) {
      if (piece.state == PieceState::kAllocated) visit(piece);
    }
  }

  // All segments by address, and their blocks.
  void list(std::vector<SegmentView>& segments, std::vector<Piece>& blocks) const;
  // What a state in the trace (the events state_segment and state_block, in order) describes; nothing where it makes no
  // sense: damage. Stacks and births are kept where the same block was known. begins: the recording began with this
  // state, so the blocks are older than it.
  std::optional<DeviceMemory> described_by(const std::vector<Event>& state, std::uint64_t sequence,
                                           std::int64_t time_ns, bool begins) const;
  // Becomes what it describes.
  void adopt(DeviceMemory&& described);
  // Whether a state lists exactly what is here. The work is that of the state, however much is here.
  bool equals(const std::vector<Event>& state) const;
  // In words, the first difference to a state; empty when there is none.
  std::string difference_to(const std::vector<Event>& state) const;

  // A copy to keep, and the way back from one.
  PackedMemory packed() const;
  void unpack(const PackedMemory& packed);
  // The same in a fold. base: another state of the same replay, which the reader has too; what they have in common
  // takes next to nothing.
  void save(FoldWriter& fold, const DeviceMemory* base) const;
  void restore(FoldReader& fold, const DeviceMemory* base);

  // Asks for the memory that an event will need: first the entry of its block; once that is here, the block; then its
  // neighbours. (Always inline: gcc takes a call that does nothing but this for one without effect, and drops it.)
  [[gnu::always_inline]] void prefetch_entry(const Event& event) const {
    piece_at_.prefetch(event.address);
    if (event.kind == EventKind::kAlloc && event.stack < stacks_.size()) __builtin_prefetch(&stacks_[event.stack]);
  }
  [[gnu::always_inline]] void prefetch_piece(const Event& event) const {
    const PieceIndex* const found = piece_at_.find(event.address);
    if (found) __builtin_prefetch(&pieces_[*found]);
  }
  [[gnu::always_inline]] void prefetch_neighbours(const Event& event) const {
    const PieceIndex* const found = piece_at_.find(event.address);
    if (!found) return;
    const Piece& piece = pieces_[*found];
    __builtin_prefetch(&segments_[piece.segment]);
    if (event.kind == EventKind::kAlloc) {
      piece_at_.prefetch(piece.address + rules_.settings.rounded(event.size));  // of the rest, if it is split
    } else {
      piece_at_.prefetch(piece.address + piece.size);
      if (piece.previous != kNoPiece) __builtin_prefetch(&pieces_[piece.previous]);
      if (piece.next != kNoPiece) __builtin_prefetch(&pieces_[piece.next]);
    }
  }

 private:
  const char* allocate(const Event& event, std::uint64_t sequence, std::int64_t time_ns, std::uint32_t forward_stack);
  const char* request_free(Event& event);
  const char* complete_free(Event& event);
  const char* add_segment(const Event& event);
  const char* remove_segment(const Event& event);
  const char* map(const Event& event);
  const char* unmap(const Event& event);

  const char* unmatched_free(const Event& event);
  void end_life(const Piece& piece) {
    ended_ = {piece.alloc_sequence, piece.size, piece.stack, index_of(piece), piece.node_type};
  }
  void set_origin(Piece& piece, const Event& event, std::uint64_t sequence, std::uint32_t forward_stack) const;
  // nullptr for one that is far behind all others, see Definitions::fix_synthetic_stacks().
  StackTotals* totals_of(std::uint32_t stack);

  PieceIndex new_piece(const Piece& piece);
  void drop(PieceIndex index);
  void link(PieceIndex previous, PieceIndex next);
  PieceIndex split(PieceIndex index, std::uint64_t size);
  PieceIndex merged(PieceIndex index);
  // Takes a piece out of all sums and orders, or puts it back: around each change of its state, place or size.
  void count(PieceIndex index, bool comes);
  void count_all();
  // Of a state of which only what cannot be rebuilt from the rest is known. False where two pieces have one address.
  bool rebuild(std::uint64_t reserved);
  std::uint64_t releasable_bytes(const Piece& piece) const;
  // in_it: any piece of the segment, kNoPiece where it has none yet.
  void set_large(std::uint32_t segment, PieceIndex in_it, bool is_large);
  bool splits(const Piece& piece, const Segment& segment, std::uint64_t wanted) const;
  std::uint32_t add_segment_record(std::uint64_t origin, std::uint64_t size, std::uint32_t location,
                                   bool is_expandable);
  std::uint64_t pool_of(std::uint32_t location) const;

  const Definitions* definitions_;
  std::int32_t device_type_, device_index_;
  DeviceRules rules_;

  Pieces pieces_;
  std::vector<PieceIndex> unused_pieces_;
  std::vector<Segment> segments_{1};
  std::vector<std::uint32_t> unused_segments_;
  AddressMap<PieceIndex> piece_at_;
  std::map<std::uint64_t, PieceIndex> expandable_free_;  // free and mapped
  FreeSizes free_sizes_;
  MemoryTotals totals_;
  std::uint64_t other_mapped_ = 0;  // pieces that are free, or wait to be
  std::vector<StackTotals> stacks_;
  DeviceHistory history_;
  FreedBlock ended_;
  PieceIndex last_allocated_ = kNoPiece;
};

}  // namespace alloctrace
