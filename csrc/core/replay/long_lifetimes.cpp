#include "long_lifetimes.h"

#include <algorithm>
#include <tuple>

namespace alloctrace {

void LongLifetimes::begin_cell(std::uint64_t sequence, std::int64_t time_ns) {
  if (!begins_.empty()) close_cell();
  if (begins_.size() == kMaxCells) halve();
  begins_.push_back(sequence);
  begins_ns_.push_back(time_ns);
  cell_begin_ = sequence;
  allocations_in_cell_ = 0;
}

std::uint16_t LongLifetimes::cell_of(std::uint64_t sequence) const {
  const auto later = std::upper_bound(begins_.begin(), begins_.end(), sequence);
  // A block from before the first allocation belongs to the first cell.
  return static_cast<std::uint16_t>(later == begins_.begin() ? 0 : later - begins_.begin() - 1);
}

void LongLifetimes::close_cell() {
  const auto freed_in = static_cast<std::uint16_t>(begins_.size() - 1);
  for (const RecentFree& block : recent_frees_) {
    freed_groups_.push_back({block.stack, cell_of(block.alloc_sequence), freed_in, 1, block.bytes});
  }
  recent_frees_.clear();
  if (freed_groups_.size() > 2 * merged_count_ + 4096) merge_equal();
}

// Merge each two cells, and drop blocks that were allocated and freed in the same merged cell.
void LongLifetimes::halve() {
  for (std::size_t cell = 0; cell < kMaxCells / 2; ++cell) {
    begins_[cell] = begins_[2 * cell];
    begins_ns_[cell] = begins_ns_[2 * cell];
  }
  begins_.resize(kMaxCells / 2);
  begins_ns_.resize(kMaxCells / 2);
  cell_length_ *= 2;
  for (Growth& growth : growths_) {
    for (std::size_t cell = 0; cell < kMaxCells / 2; ++cell) {
      growth.cells[cell] = growth.cells[2 * cell] || growth.cells[2 * cell + 1];
    }
    growth.cells &= ~std::bitset<kMaxCells>() >> kMaxCells / 2;
  }
  for (FreedGroup& group : freed_groups_) {
    group.allocated_in /= 2;
    group.freed_in /= 2;
  }
  std::erase_if(freed_groups_, [](const FreedGroup& group) { return group.allocated_in == group.freed_in; });
  merge_equal();
}

void LongLifetimes::merge_equal(FreedGroups& groups) {
  const auto key = [](const FreedGroup& group) { return std::tie(group.stack, group.allocated_in, group.freed_in); };
  std::sort(groups.begin(), groups.end(), [&](const FreedGroup& a, const FreedGroup& b) { return key(a) < key(b); });
  std::size_t merged = 0;
  for (const FreedGroup& group : groups) {
    if (merged != 0 && key(groups[merged - 1]) == key(group)) {
      groups[merged - 1].blocks += group.blocks;
      groups[merged - 1].bytes += group.bytes;
    } else {
      groups[merged++] = group;
    }
  }
  groups.resize(merged);
}

void LongLifetimes::merge_equal() {
  merge_equal(freed_groups_);
  merged_count_ = freed_groups_.size();
}

void LongLifetimes::finish() {
  std::erase_if(recent_frees_, [this](const RecentFree& block) { return block.free_sequence > last_allocation_; });
  if (!begins_.empty()) close_cell();
  merge_equal();
  freed_groups_.shrink_to_fit();
  recent_frees_ = {};
}

}  // namespace alloctrace
