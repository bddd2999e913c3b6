// The memory of one device as torch's allocator has it at a moment: its segments, and the blocks that tile them. A
// mirror of the native caching allocator's own lists, moved on by the events of a trace.
//
// Each event is constant work: blocks are found by their address and know their neighbours. (Free blocks of expandable
// segments are also kept in order, for unmapping begins anywhere in one.)
//
// An event that contradicts the mirror is told, and the mirror follows the event.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../base/address_map.h"
#include "../base/pages.h"
#include "../format/definitions.h"
#include "../format/event.h"
#include "allocator_rules.h"
#include "free_sizes.h"

namespace alloctrace {

enum class PieceState : std::uint8_t { kFree, kAllocated, kPendingFree, kUnmapped, kUnused };

using PieceIndex = std::uint32_t;
constexpr PieceIndex kNoPiece = UINT32_MAX;

// A stretch of a segment: torch's Block. Unmapped stretches of expandable segments are pieces too; the last one of each
// reaches to the end of the address space, since no event tells its size. One cache line: most are far from each other.
struct alignas(64) Piece {
  std::uint64_t address = 0, size = 0;
  std::uint64_t requested = 0;  // of a free one: what torch has left there from its former lives
  std::uint64_t birth = 0;      // sequence number of its alloc
  std::int64_t birth_ns = 0;
  PieceIndex previous = kNoPiece, next = kNoPiece;  // neighbours in the segment
  std::uint32_t segment = 0;
  std::uint32_t stack = 0;  // of forward, where `is_of_backward` says so
  std::uint32_t thread = 0;
  std::uint16_t node_type = 0;
  PieceState state = PieceState::kUnused;
  bool is_of_backward = false;  // made in backward, without a Python stack of its own
};
static_assert(sizeof(Piece) == 64);

// What one cudaMalloc gave, or one expandable range of addresses. Entry 0 stands for no segment: blocks of allocators
// that tell none.
struct Segment {
  std::uint64_t origin = 0;            // of an expandable one: an address from which units of mapping are counted
  std::uint64_t unit = kSmallSegment;  // of mapping
  std::uint32_t location = 0;
  bool is_large = false;
  bool is_large_known = false;  // by a request; else guessed from the size
  bool is_expandable = false;
};

// Bytes, but for `blocks`. The definitions are those of docs/reading.md, "What the bytes mean".
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

// A segment as torch.cuda.memory_snapshot() lists it: of an expandable one, each stretch that is mapped without a gap.
struct SegmentView {
  std::uint64_t address = 0, total_size = 0, allocated_size = 0, active_size = 0, requested_size = 0;
  std::uint32_t location = 0;
  bool is_large = false, is_expandable = false;
  std::size_t first_block = 0, block_count = 0;  // in the list of blocks
};

// What the trace has told of how the device's allocator works.
struct DeviceRules {
  AllocatorSettings settings;
  bool tells_segments = false;
  std::vector<std::uint64_t> unsplit_pools;  // no_split was set
  std::uint32_t restoring_thread = 0;        // it makes a pool's blocks as they were before; 0: none does
  std::vector<std::uint64_t> left_pools;     // were in use, and are no more: only the last resort allocates there
  std::vector<std::uint64_t> own_pools;      // have an allocator of their own: never expandable
};

// What was seen of a device so far.
struct DeviceHistory {
  bool is_touched = false;  // a block of it was known
  // Frees of blocks whose alloc is not in the trace: they were alive before it began, or their alloc was lost.
  std::uint64_t unmatched_frees = 0;
  // Allocs at an address that was live: the free between is missing. The old block is taken as freed.
  std::uint64_t missed_frees = 0;
  std::set<std::uint64_t> unmatched_requests;  // of these the completion is not counted once more
};

// A DeviceMemory that is only kept: what cannot be made anew of the rest.
struct PackedMemory {
  std::int32_t device_type = 0, device_index = 0;
  DeviceRules rules;
  std::vector<Piece, PageAllocator<Piece, Pages::kFilled>> pieces;
  std::vector<Segment> segments;
  std::vector<std::uint32_t> unused_segments;
  std::uint64_t reserved = 0;
  DeviceHistory history;
  std::vector<std::pair<std::uint32_t, StackTotals>> stacks;  // that have allocated, with their numbers

  std::size_t bytes() const {
    return pieces.capacity() * sizeof(Piece) + segments.capacity() * sizeof(Segment) +
           stacks.capacity() * sizeof stacks[0];
  }
};

class DeviceMemory {
 public:
  DeviceMemory(std::int32_t device_type, std::int32_t device_index, const Definitions& definitions)
      : definitions_(&definitions), device_type_(device_type), device_index_(device_index) {}

  std::int32_t device_type() const { return device_type_; }
  std::int32_t device_index() const { return device_index_; }

  // Takes in the next event of this device. forward_stack: of an allocation, see ForwardStacks. nullptr, or in a few
  // words what contradicts the state before.
  const char* apply(const Event& event, std::uint64_t sequence, std::int64_t time_ns, std::uint32_t forward_stack);

  const MemoryTotals& totals() const { return totals_; }
  std::uint64_t largest_free() { return free_sizes_.largest(); }
  // No block of it is known, nor ever was.
  bool is_untouched() const { return !history_.is_touched; }
  // Whether its allocator tells segments: only then do reserved, and what follows from it, mean anything.
  bool tells_segments() const { return rules_.tells_segments; }

  // What each has allocated, by its number.
  const std::vector<StackTotals>& stacks() const { return stacks_; }
  const DeviceHistory& history() const { return history_; }
  template <typename Visit>
  void for_each_allocated(Visit visit) const {
    for (const Piece& piece : pieces_) {
      if (piece.state == PieceState::kAllocated) visit(piece);
    }
  }

  // All segments by address, and their blocks.
  void list(std::vector<SegmentView>& segments, std::vector<Piece>& blocks) const;
  // Becomes what `state` (the events state_segment and state_block, in order) tells. Stacks and births are kept where
  // the same block was known. False when it makes no sense: damage.
  bool adopt(const std::vector<Event>& state, std::uint64_t sequence, std::int64_t time_ns);
  // In words, the first of the differences to a state that is told; empty when there is none.
  std::string difference_to(const std::vector<Event>& state) const;

  // A copy that is only kept, and this becoming what such a copy was made of.
  PackedMemory packed() const;
  void unpack(const PackedMemory& packed);

  // The memory that an event will need: first where its block is noted; once that has come, the block; then what is
  // next to it. (Always inline: gcc takes a call that does nothing but this for one without effect, and drops it.)
  [[gnu::always_inline]] void prefetch_place(const Event& event) const {
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
      piece_at_.prefetch(piece.address + rules_.settings.rounded(event.size));  // of the rest, should it be split
    } else {
      piece_at_.prefetch(piece.address + piece.size);
      if (piece.previous != kNoPiece) __builtin_prefetch(&pieces_[piece.previous]);
      if (piece.next != kNoPiece) __builtin_prefetch(&pieces_[piece.next]);
    }
  }

 private:
  const char* allocate(const Event& event, std::uint64_t sequence, std::int64_t time_ns, std::uint32_t forward_stack);
  const char* request_free(const Event& event);
  const char* complete_free(const Event& event);
  const char* add_segment(const Event& event);
  const char* remove_segment(const Event& event);
  const char* map(const Event& event);
  const char* unmap(const Event& event);

  const char* unmatched_free(const Event& event);

  PieceIndex new_piece(const Piece& piece);
  void drop(PieceIndex index);
  void link(PieceIndex previous, PieceIndex next);
  PieceIndex split(PieceIndex index, std::uint64_t size);
  PieceIndex merged(PieceIndex index);
  // Takes a piece out of all sums and orders, or puts it back: around each change of its state, place or size.
  void count(PieceIndex index, bool comes);
  void count_all();
  std::uint64_t releasable_bytes(const Piece& piece) const;
  void set_large(std::uint32_t segment, bool is_large);
  bool splits(const Piece& piece, const Segment& segment, std::uint64_t wanted) const;
  std::uint32_t add_segment_record(std::uint64_t origin, std::uint64_t size, std::uint32_t location,
                                   bool is_expandable);
  std::uint64_t pool_of(std::uint32_t location) const;

  const Definitions* definitions_;
  std::int32_t device_type_, device_index_;
  DeviceRules rules_;

  std::vector<Piece, PageAllocator<Piece, Pages::kLarge>> pieces_;
  std::vector<PieceIndex> unused_pieces_;
  std::vector<Segment> segments_{1};
  std::vector<std::uint32_t> unused_segments_;
  AddressMap<PieceIndex> piece_at_;
  std::map<std::uint64_t, PieceIndex> expandable_free_;  // free and mapped
  FreeSizes free_sizes_;
  MemoryTotals totals_;
  std::vector<StackTotals> stacks_;
  DeviceHistory history_;
};

}  // namespace alloctrace
