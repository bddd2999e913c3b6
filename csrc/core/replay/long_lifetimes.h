// Long-lived blocks of a device, by the time of their allocation and free: the evidence for leaks.
//
// The run is divided into at most kMaxCells cells of equally many allocations; when another cell is needed, each two
// are merged. Only blocks that are freed in a later cell than they were allocated in are recorded, by stack and cells;
// others cost one comparison. Recorded blocks and those live at the end give the exact number of live blocks at each
// border.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <vector>

#include "../base/pages.h"
#include "../format/compaction_codec.h"

namespace alloctrace {

// A block at the moment of its free.
struct FreedBlock {
  std::uint64_t alloc_sequence = UINT64_MAX;  // UINT64_MAX: no block was freed
  std::uint64_t bytes = 0;                    // allocated
  std::uint32_t stack = 0;
  std::uint32_t piece = 0;  // index in DeviceMemory
  std::uint16_t node_type = 0;
};

class LongLifetimes {
 public:
  static constexpr std::size_t kMaxCells = 256;

  // Blocks of one stack that were allocated in one cell and freed in a later one.
  struct FreedGroup {
    std::uint32_t stack = 0;
    std::uint16_t allocated_in = 0, freed_in = 0;  // cells
    std::uint64_t blocks = 0, bytes = 0;
  };

  using FreedGroups = std::vector<FreedGroup, LargePageAllocator<FreedGroup>>;

  // Cells in which a line allocated a larger block than ever before: a growing buffer does so throughout the run, a
  // buffer of varying size ever more rarely.
  struct Growth {
    std::uint64_t largest = 0;  // requested bytes of its largest block so far
    std::bitset<kMaxCells> cells;
  };

  void add_allocation(std::uint64_t sequence, std::int64_t time_ns, std::uint32_t line, std::uint64_t size) {
    if (allocations_in_cell_ == cell_length_ || begins_.empty()) begin_cell(sequence, time_ns);
    ++allocations_in_cell_;
    if (line >= growths_.size()) growths_.resize(line + std::size_t{1});
    Growth& growth = growths_[line];
    if (size > growth.largest) {
      if (growth.largest != 0) growth.cells.set(begins_.size() - 1);
      growth.largest = size;
    }
    last_allocation_ = sequence;
    last_ns_ = time_ns;
  }
  void add_free(std::uint64_t alloc_sequence, std::uint32_t stack, std::uint64_t bytes, std::uint64_t free_sequence) {
    if (alloc_sequence < cell_begin_) recent_frees_.push_back({alloc_sequence, bytes, free_sequence, stack});
  }
  // Finish after the last event. Drop frees after the last allocation: they belong to the program's exit.
  void finish();

  // Save before finish(), for a later pass. A `line` given to add_allocation() must then be a stack id; restore() maps
  // it.
  void save(CompactionWriter& out) const;
  void restore(CompactionReader& in, const std::function<std::uint32_t(std::uint32_t)>& line_of);
  // Raise the size that a block of the line must exceed to count as growth.
  void raise_largest(std::uint32_t line, std::uint64_t size) {
    if (line >= growths_.size()) growths_.resize(line + std::size_t{1});
    growths_[line].largest = size > growths_[line].largest ? size : growths_[line].largest;
  }

  // Return the first event of each cell, and its time (wall clock).
  const std::vector<std::uint64_t>& begins() const { return begins_; }
  const std::vector<std::int64_t>& begins_ns() const { return begins_ns_; }
  // Return the groups, ordered by stack, allocated_in and freed_in.
  const FreedGroups& freed_groups() const { return freed_groups_; }
  const std::vector<Growth>& growths() const { return growths_; }
  // Return the sequence number of the last allocation, or 0.
  std::uint64_t last_allocation() const { return last_allocation_; }
  std::int64_t last_ns() const { return last_ns_; }
  std::uint64_t allocations() const {
    return cell_length_ * (begins_.empty() ? 0 : begins_.size() - 1) + allocations_in_cell_;
  }
  std::uint64_t cell_length() const { return cell_length_; }

 private:
  struct RecentFree {
    std::uint64_t alloc_sequence, bytes, free_sequence;
    std::uint32_t stack;
  };

  // Sections of the saved state. The run: its cells, and how far the last one is filled.
  void save_run(CompactionWriter& out) const;
  void restore_run(CompactionReader& in);
  void save_recent_frees(CompactionWriter& out) const;
  void restore_recent_frees(CompactionReader& in);
  void save_freed_groups(CompactionWriter& out) const;
  void restore_freed_groups(CompactionReader& in);
  void save_growths(CompactionWriter& out) const;
  void restore_growths(CompactionReader& in, const std::function<std::uint32_t(std::uint32_t)>& line_of);

  void begin_cell(std::uint64_t sequence, std::int64_t time_ns);
  void close_cell();
  void halve();
  static void merge_equal(FreedGroups& groups);
  void merge_equal();
  std::uint16_t cell_of(std::uint64_t sequence) const;

  std::vector<std::uint64_t> begins_;
  std::vector<std::int64_t> begins_ns_;
  std::int64_t last_ns_ = 0;
  std::uint64_t cell_begin_ = 0, cell_length_ = 1, allocations_in_cell_ = 0, last_allocation_ = 0;
  std::vector<RecentFree> recent_frees_;  // in the current cell, of blocks of earlier cells
  FreedGroups freed_groups_;
  std::vector<Growth> growths_;
  std::size_t merged_count_ = 0;  // groups after the last merge_equal()
};

}  // namespace alloctrace
