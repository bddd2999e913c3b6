// The memory of one device at a position of a trace: its segments, and the blocks that tile them. A mirror of the
// native caching allocator's own lists, updated by the events of the trace.
//
// Each event takes constant time: blocks are looked up by address and linked to their neighbours. (Free blocks of
// expandable segments are also ordered by address, because an unmapping may begin inside a block.) An event that
// contradicts the mirror is reported, and applied.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../base/address_map.h"
#include "../base/check.h"
#include "../base/pages.h"
#include "../format/compaction_codec.h"
#include "../format/definitions.h"
#include "../format/event_fields.h"
#include "../format/format.h"
#include "allocator_rules.h"
#include "free_sizes.h"
#include "long_lifetimes.h"
#include "piece.h"

namespace alloctrace {

// The memory of one cudaMalloc, or one expandable range of addresses. Entry 0: for blocks of no reported segment.
struct Segment {
  std::uint64_t origin = 0;           // if expandable: address from which units are counted
  std::uint64_t unit = kSegmentUnit;  // bytes mapped at once
  std::uint32_t location = 0;
  bool is_large = false;
  bool is_large_known = false;  // from a request; else is_large is guessed from the size
  bool is_expandable = false;
};

// Current totals in bytes, as defined in docs/reading.md, "What the bytes mean".
struct MemoryTotals {
  std::uint64_t requested = 0, allocated = 0, active = 0, reserved = 0, releasable = 0;
  std::uint64_t blocks = 0;  // number of allocated blocks

  std::uint64_t cached() const { return reserved > active ? reserved - active : 0; }
  std::uint64_t stranded() const { return cached() > releasable ? cached() - releasable : 0; }
};

// All allocations of a stack so far, in requested bytes. A new field is also one of DeviceMemory::save() and restore(),
// and so of a new CompactionSummary::kVersion.
struct StackTotals {
  std::uint64_t allocations = 0, bytes = 0, largest = 0;
};

// A row of torch.cuda.memory_snapshot(): a segment, or a contiguously mapped part of an expandable segment.
struct SegmentView {
  std::uint64_t address = 0, total_size = 0, allocated_size = 0, active_size = 0, requested_size = 0;
  std::uint32_t location = 0;
  bool is_large = false, is_expandable = false;
  std::size_t first_block = 0, block_count = 0;  // in the list of blocks
};

// Settings and pools of the device's allocator, as reported so far.
struct DeviceRules {
  AllocatorSettings settings;
  bool reports_segments = false;
  std::set<std::uint64_t> unsplit_pools;   // whose blocks are not split
  std::uint32_t restoring_thread = 0;      // restores the blocks of a pool; 0: no thread
  std::set<std::uint64_t> inactive_pools;  // torch allocates there only as a last resort
  std::set<std::uint64_t> custom_pools;    // have an allocator of their own: never expandable
};

// Gaps of the trace found so far on a device.
struct DeviceHistory {
  bool is_touched = false;  // the device has had a block
  // Frees of blocks whose allocation is not in the trace: before it began, or lost.
  std::uint64_t unmatched_frees = 0;
  // Allocations at a live address: the free between is missing, and the old block counts as freed.
  std::uint64_t missed_frees = 0;
  std::set<std::uint64_t> unmatched_requests;  // addresses; the completion of these frees is not counted again
};

// A DeviceMemory in a checkpoint, as DeviceMemory::save() writes it.
struct PackedMemory {
  std::int32_t device_type = 0, device_index = 0;
  Bytes bytes;
};

// Return whether the event has a valid range of addresses.
inline bool has_valid_range(const Event& event) {
  return event.size != 0 && event.size <= kMaxBlockBytes && event.address <= UINT64_MAX - event.size;
}

class DeviceMemory {
 public:
  DeviceMemory(std::int32_t device_type, std::int32_t device_index, const Definitions& definitions)
      : definitions_(&definitions), device_type_(device_type), device_index_(device_index) {}

  std::int32_t device_type() const { return device_type_; }
  std::int32_t device_index() const { return device_index_; }

  // Apply the next event of this device, and set the size of a free that has none. forward_stack: of an allocation, see
  // ForwardStacks. Return how the event contradicts the state before it, or nullptr.
  const char* apply(Event& event, std::uint64_t sequence, std::int64_t time_ns, std::uint32_t forward_stack);

  const MemoryTotals& totals() const { return totals_; }
  std::uint64_t largest_free() { return free_sizes_.largest(); }
  // Return whether the device has never had a block.
  bool is_untouched() const { return !history_.is_touched; }
  // Return whether the allocator reports segments. If not, `reserved` and the totals derived from it mean nothing.
  bool reports_segments() const { return rules_.reports_segments; }

  // Return the totals by stack id.
  const std::vector<StackTotals>& stacks() const { return stacks_; }
  const DeviceHistory& history() const { return history_; }
  const FreedBlock& last_freed() const { return last_freed_; }
  // Return the piece of the last allocation. The index of a piece is stable while the piece is allocated.
  PieceIndex last_allocated() const { return last_allocated_; }
  const Piece& piece(PieceIndex index) const { return pieces_[index]; }
  std::size_t piece_count() const { return pieces_.size(); }
  PieceIndex index_of(const Piece& piece) const { return static_cast<PieceIndex>(&piece - pieces_.data()); }
  const Piece* find_allocated(std::uint64_t address) const {
    const PieceIndex* const entry = piece_at_.find(address);
    return entry && pieces_[*entry].state == PieceState::kAllocated ? &pieces_[*entry] : nullptr;
  }
  template <typename Visit>
  void for_each_allocated(Visit visit) const {
    for (const Piece& piece : pieces_) {
      if (piece.state == PieceState::kAllocated) visit(piece);
    }
  }

  // List all segments by address, and their blocks.
  void list(std::vector<SegmentView>& segments, std::vector<Piece>& blocks) const;
  // Build the memory that a state in the trace (events state_segment and state_block) describes; nothing if the state
  // is corrupt. Blocks that are also in this memory keep stack and time. begins: the recording began with this state,
  // so the other blocks are older than the recording.
  std::optional<DeviceMemory> build_from_state(const std::vector<Event>& state, std::uint64_t sequence,
                                               std::int64_t time_ns, bool begins) const;
  // Replace segments and blocks, but keep settings, totals of stacks and history.
  void replace_with(DeviceMemory&& described);
  // Return whether a state lists exactly this memory, in time proportional to the state.
  bool equals(const std::vector<Event>& state) const;
  // Return the first difference to a state in words; empty if there is none.
  std::string difference_to(const std::vector<Event>& state) const;

  // Check builds, after each event: abort if lists, indices or totals differ from those recomputed from the pieces.
  // Compare after a number of events that grows with the number of pieces, so that an event costs constant time.
  void check_consistency(std::uint64_t sequence);

  // Return a copy for a checkpoint; restore one.
  PackedMemory packed() const;
  void unpack(const PackedMemory& packed);
  // Write to the compacted part; read from it. base: another state of the replay. Only differences to it take space.
  void save(CompactionWriter& out, const DeviceMemory* base) const;
  void restore(CompactionReader& in, const DeviceMemory* base);

  // Prefetch the memory that an event will need, in three steps: the entry of its block, the block, its neighbours.
  // Always inline: gcc removes a call of a function that only prefetches.
  [[gnu::always_inline]] void prefetch_entry(const Event& event) const {
    piece_at_.prefetch(event.address);
    if (event.kind == EventKind::kAlloc && event.stack < stacks_.size()) __builtin_prefetch(&stacks_[event.stack]);
  }
  [[gnu::always_inline]] void prefetch_piece(const Event& event) const {
    const PieceIndex* const entry = piece_at_.find(event.address);
    if (entry) __builtin_prefetch(&pieces_[*entry]);
  }
  [[gnu::always_inline]] void prefetch_neighbours(const Event& event) const {
    const PieceIndex* const entry = piece_at_.find(event.address);
    if (!entry) return;
    const Piece& piece = pieces_[*entry];
    __builtin_prefetch(&segments_[piece.segment]);
    if (event.kind == EventKind::kAlloc) {
      piece_at_.prefetch(piece.address + rules_.settings.rounded(event.size));  // the rest of a split
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
  void set_last_freed(const Piece& piece) {
    last_freed_ = {piece.alloc_sequence, piece.size, piece.stack, index_of(piece), piece.node_type};
  }
  void set_origin(Piece& piece, const Event& event, std::uint64_t sequence, std::uint32_t forward_stack) const;
  // Return the totals of a stack; nullptr for an id from Definitions::kFixedSyntheticStack on.
  StackTotals* totals_of(std::uint32_t stack);

  PieceIndex add_piece(const Piece& piece, PieceIndex uncounted = kNoPiece);
  void remove_stale(PieceIndex index, PieceIndex uncounted);
  void remove_piece(PieceIndex index);
  void link(PieceIndex previous, PieceIndex next);
  PieceIndex split(PieceIndex index, std::uint64_t size);
  PieceIndex merge_neighbours(PieceIndex index);
  // Add a piece to totals and indices, or remove it: around each change of its state, neighbours or size.
  void update_totals(PieceIndex index, bool is_added);
  void add_all_to_totals();
  // Rebuild totals and indices from the pieces. Return false if two pieces have the same address.
  bool rebuild(std::uint64_t reserved);
  std::uint64_t releasable_bytes(const Piece& piece) const;
  std::uint64_t mapped_bytes() const;  // of the pieces; check builds only
  // start: any piece of the segment; kNoPiece if it has none yet.
  void set_large(std::uint32_t segment, PieceIndex start, bool is_large);
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
  std::map<std::uint64_t, PieceIndex> expandable_free_;  // by address
  FreeSizes free_sizes_;
  MemoryTotals totals_;
  std::uint64_t other_mapped_ = 0;  // number of free and pending pieces
  std::vector<StackTotals> stacks_;
  DeviceHistory history_;
  FreedBlock last_freed_;
  PieceIndex last_allocated_ = kNoPiece;
#ifdef ALLOCTRACE_CHECKS
  std::uint64_t events_to_next_check_ = 0;
  std::uint64_t reserved_by_no_piece_ = 0;  // from a compacted part with another sum than its pieces
#endif
};

}  // namespace alloctrace
