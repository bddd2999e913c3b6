// Which blocks of a device lived long, and when they were born and died: the evidence for leaks, gathered while the
// trace is replayed.
//
// The run is divided into cells of equally many allocations, at most kCells; when there would be more, each two become
// one. Only a block that dies in a later cell than the one it was born in is noted, by stack and by its two cells: most
// die young and cost a comparison. Blocks that cross the border of two cells are known exactly, so that the number
// alive at each border follows from these deaths and from the blocks that are still there.
//
// Also noted are the cells in which a line allocated more at once than ever before: a buffer that grows does so all the
// time, what varies ever more seldom.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <vector>

#include "../base/pages.h"
#include "fold_codec.h"

namespace alloctrace {

// A block as it is given up.
struct EndedLife {
  std::uint64_t birth = UINT64_MAX;  // sequence number of its alloc; UINT64_MAX: nothing ended
  std::uint64_t bytes = 0;           // allocated
  std::uint32_t stack = 0;
  std::uint32_t piece = 0;  // its number in DeviceMemory
  std::uint16_t node_type = 0;
};

class LongLives {
 public:
  static constexpr std::size_t kCells = 256;

  // Blocks of one stack that were born in one cell and died in a later one.
  struct Deaths {
    std::uint32_t stack = 0;
    std::uint16_t born = 0, died = 0;  // cells
    std::uint64_t blocks = 0, bytes = 0;
  };

  using DeathList = std::vector<Deaths, LargePageAllocator<Deaths>>;

  // When a line allocated more at once than ever before.
  struct Growth {
    std::uint64_t largest = 0;  // requested bytes of its largest block so far
    std::bitset<kCells> cells;
  };

  void allocated(std::uint64_t sequence, std::int64_t time_ns, std::uint32_t line, std::uint64_t size) {
    if (in_cell_ == cell_length_ || begins_.empty()) begin_cell(sequence, time_ns);
    ++in_cell_;
    if (line >= growths_.size()) growths_.resize(line + std::size_t{1});
    Growth& growth = growths_[line];
    if (size > growth.largest) {
      if (growth.largest != 0) growth.cells.set(begins_.size() - 1);
      growth.largest = size;
    }
    last_allocation_ = sequence;
    last_ns_ = time_ns;
  }
  void ended(std::uint64_t birth, std::uint32_t stack, std::uint64_t bytes, std::uint64_t sequence) {
    if (birth < cell_begin_) open_.push_back({birth, bytes, sequence, stack});
  }
  // After the last event. What died after the last allocation died because the program ended, not while it worked.
  void finish();

  // Of a run that may go on. Growth is saved by stack, so `line` was the stack; it is read into lines.
  void save(FoldWriter& fold) const;
  void restore(FoldReader& fold, const std::function<std::uint32_t(std::uint32_t)>& line_of);
  // A line has made a block of this size before: what is not larger is no growth.
  void know_size(std::uint32_t line, std::uint64_t size) {
    if (line >= growths_.size()) growths_.resize(line + std::size_t{1});
    growths_[line].largest = size > growths_[line].largest ? size : growths_[line].largest;
  }

  // The event with which each cell begins.
  const std::vector<std::uint64_t>& begins() const { return begins_; }
  // Its time (wall clock).
  const std::vector<std::int64_t>& begins_ns() const { return begins_ns_; }
  // Ordered by stack, birth and death.
  const DeathList& deaths() const { return deaths_; }
  // By line.
  const std::vector<Growth>& growths() const { return growths_; }
  // The sequence number of the last allocation; 0: there was none.
  std::uint64_t last_allocation() const { return last_allocation_; }
  std::int64_t last_ns() const { return last_ns_; }
  std::uint64_t allocations() const { return cell_length_ * (begins_.empty() ? 0 : begins_.size() - 1) + in_cell_; }
  std::uint64_t cell_length() const { return cell_length_; }

 private:
  struct OpenDeath {
    std::uint64_t birth, bytes, sequence;
    std::uint32_t stack;
  };

  void begin_cell(std::uint64_t sequence, std::int64_t time_ns);
  void close_cell();
  void halve();
  static void compact(DeathList& deaths);
  void compact();
  std::uint16_t cell_of(std::uint64_t sequence) const;

  std::vector<std::uint64_t> begins_;
  std::vector<std::int64_t> begins_ns_;
  std::int64_t last_ns_ = 0;
  std::uint64_t cell_begin_ = 0, cell_length_ = 1, in_cell_ = 0, last_allocation_ = 0;
  std::vector<OpenDeath> open_;  // in the cell that has not ended
  DeathList deaths_;
  std::vector<Growth> growths_;
  std::size_t compacted_ = 0;  // how many there were when they were last put together
};

}  // namespace alloctrace
