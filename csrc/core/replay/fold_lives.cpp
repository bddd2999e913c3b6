// What is known of lives, loops and levels over time, in a fold.
#include <algorithm>

#include "long_lives.h"
#include "loops.h"
#include "memory_timeline.h"

namespace alloctrace {

void LongLives::save(FoldWriter& fold) const {
  fold.number(begins_.size());
  std::uint64_t last = 0, last_ns = 0;
  for (std::size_t cell = 0; cell < begins_.size(); ++cell) {
    fold.difference(begins_[cell], last);
    fold.difference(static_cast<std::uint64_t>(begins_ns_[cell]), last_ns);
    last = begins_[cell];
    last_ns = static_cast<std::uint64_t>(begins_ns_[cell]);
  }
  fold.signed_number(last_ns_);
  fold.number(cell_length_);
  fold.number(allocations_in_cell_);
  fold.number(last_allocation_);
  fold.number(recent_frees_.size());
  for (const RecentFree& block : recent_frees_) {
    fold.number(block.alloc_sequence);
    fold.number(block.bytes);
    fold.stack(block.stack);
    fold.number(block.free_sequence);
  }
  FreedGroups groups = freed_groups_;
  merge_equal(groups);
  fold.number(groups.size());
  for (const FreedGroup& group : groups) {
    fold.stack(group.stack);
    fold.number(group.allocated_in);
    fold.number(group.freed_in);
    fold.number(group.blocks);
    fold.number(group.bytes);
  }
  std::size_t grown = 0;
  for (const Growth& growth : growths_) grown += growth.cells.any() ? 1 : 0;
  fold.number(grown);
  for (std::uint32_t stack = 0; stack < growths_.size(); ++stack) {
    const Growth& growth = growths_[stack];
    if (growth.cells.none()) continue;
    fold.stack(stack);
    fold.number(growth.largest);
    fold.number(growth.cells.count());
    std::size_t before = 0;
    for (std::size_t cell = 0; cell < kMaxCells; ++cell) {
      if (!growth.cells[cell]) continue;
      fold.number(cell - before);
      before = cell;
    }
  }
}

void LongLives::restore(FoldReader& fold, const std::function<std::uint32_t(std::uint32_t)>& line_of) {
  const std::uint64_t cells = fold.below(kMaxCells + 1);
  std::uint64_t last = 0, last_ns = 0;
  for (std::uint64_t cell = 0; cell < cells; ++cell) {
    const std::uint64_t begin = fold.difference(last);
    if ((cell != 0 && begin <= last) || begin > kMaxSequence) throw DecodeError("cells that are not in order");
    begins_.push_back(last = begin);
    begins_ns_.push_back(static_cast<std::int64_t>(last_ns = fold.difference(last_ns)));
  }
  last_ns_ = fold.signed_number();
  cell_length_ = fold.number();
  allocations_in_cell_ = fold.number();
  last_allocation_ = fold.number();
  if (cell_length_ == 0 || cell_length_ > kMaxSequence / kMaxCells || allocations_in_cell_ > cell_length_ ||
      last_allocation_ > kMaxSequence) {
    throw DecodeError("cells of an impossible length");
  }
  cell_begin_ = begins_.empty() ? 0 : begins_.back();
  for (std::size_t left = fold.count(4); left > 0; --left) {
    RecentFree& block = recent_frees_.emplace_back();
    block.alloc_sequence = fold.number();
    block.bytes = fold.number();
    block.stack = fold.stack();
    block.free_sequence = fold.number();
  }
  for (std::size_t left = fold.count(5); left > 0; --left) {
    FreedGroup& group = freed_groups_.emplace_back();
    group.stack = fold.stack();
    group.allocated_in = static_cast<std::uint16_t>(fold.below(std::max<std::uint64_t>(cells, 1)));
    group.freed_in = static_cast<std::uint16_t>(fold.below(std::max<std::uint64_t>(cells, 1)));
    group.blocks = fold.number();
    group.bytes = fold.number();
    if (group.allocated_in > group.freed_in) throw DecodeError("a block that died before it was born");
  }
  merged_count_ = freed_groups_.size();
  for (std::size_t left = fold.count(3); left > 0; --left) {
    const std::uint32_t line = line_of(fold.stack());
    raise_largest(line, fold.number());
    std::uint64_t cell = 0;
    for (std::size_t marks = fold.count(); marks > 0; --marks) {
      cell += fold.below(kMaxCells);
      if (cell >= kMaxCells) throw DecodeError("a cell that is not there");
      growths_[line].cells.set(static_cast<std::size_t>(cell));
    }
  }
}

void Loops::save(FoldWriter& fold) const {
  std::vector<std::uint64_t> keys(loops_.size());
  for (const auto& [key, number] : loop_by_key_) keys[number] = key;
  fold.number(loops_.size());
  for (std::size_t number = 0; number < loops_.size(); ++number) {
    const Loop& loop = loops_[number];
    fold.number(keys[number]);
    fold.number(loop.caller);
    fold.number(loop.function);
    fold.number(loop.rounds);
    fold.number(loop.stride);
    fold.number(loop.begins.size());
    std::uint64_t last = 0;
    for (const std::uint64_t begin : loop.begins) {
      fold.difference(begin, last);
      last = begin;
    }
  }
  fold.number(last_.size());
  for (const std::uint32_t stack : last_) fold.number(stack);
}

void Loops::restore(FoldReader& fold) {
  const std::size_t count = fold.count(6);
  if (count > kMaxLoops) throw DecodeError("more loops than are noted");
  const std::uint64_t stacks = std::max<std::size_t>(calls_.size(), 1);
  for (std::size_t number = 0; number < count; ++number) {
    loop_by_key_[fold.number()] = static_cast<std::uint32_t>(number);
    Loop& loop = loops_.emplace_back();
    loop.caller = static_cast<std::uint32_t>(fold.below(stacks));
    loop.function = static_cast<std::uint32_t>(fold.below(stacks));
    loop.depth = loop.caller < calls_.size() ? calls_[loop.caller].depth : 0;
    loop.rounds = fold.number();
    loop.stride = fold.number();
    if (loop.stride == 0 || loop.stride > kMaxSequence) throw DecodeError("a loop without rounds");
    const std::size_t begins = fold.count();
    if (begins > kMaxPositions) throw DecodeError("more rounds than are noted");
    std::uint64_t last = 0;
    for (std::size_t index = 0; index < begins; ++index) loop.begins.push_back(last = fold.difference(last));
  }
  for (std::size_t left = fold.count(); left > 0; --left)
    last_.push_back(static_cast<std::uint32_t>(fold.below(stacks)));
  if (last_.size() > definitions_->thread_count()) last_.resize(definitions_->thread_count());
}

void MemoryTimeline::save(FoldWriter& fold) const {
  for (const Peak* peak : {&allocated_peak_, &reserved_peak_}) {
    fold.number(peak->bytes);
    fold.number(peak->sequence);
    fold.signed_number(peak->time_ns);
  }
  for (const std::uint64_t value : last_) fold.number(value);
  fold.number(intervals_.size());
  std::size_t before = 0;
  Measures level{};
  for (const Interval& at : intervals_) {
    fold.number(at.number - before);
    before = at.number;
    fold.number(at.highest_sequence);
    for (std::size_t i = 0; i < kMeasureCount; ++i) {
      fold.difference(at.last[i], level[i]);
      fold.number(at.last[i] - at.lowest[i]);
      fold.number(at.highest[i] - at.last[i]);
    }
    level = at.last;
  }
}

void MemoryTimeline::restore(FoldReader& fold, std::uint64_t intervals,
                             const std::function<void(const Interval&)>& place) {
  for (Peak* peak : {&allocated_peak_, &reserved_peak_}) {
    peak->bytes = fold.number();
    peak->sequence = fold.below(kMaxSequence);
    peak->time_ns = fold.signed_number();
  }
  for (std::uint64_t& value : last_) value = fold.number();
  std::uint64_t index = 0, before = UINT64_MAX;
  Measures level{};
  for (std::size_t left = fold.count(2 + 3 * kMeasureCount); left > 0; --left) {
    const std::uint64_t step = fold.number();
    if ((before != UINT64_MAX && step == 0) || step >= intervals || index + step >= intervals) {
      throw DecodeError("an interval that is not there");
    }
    before = index += step;
    Interval at;
    at.number = static_cast<std::size_t>(index);
    at.highest_sequence = fold.below(kMaxSequence);
    for (std::size_t i = 0; i < kMeasureCount; ++i) {
      at.last[i] = fold.difference(level[i]);
      at.lowest[i] = at.last[i] - fold.number();
      at.highest[i] = at.last[i] + fold.number();
    }
    level = at.last;
    place(at);
  }
}

}  // namespace alloctrace
