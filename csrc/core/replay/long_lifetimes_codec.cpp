// LongLifetimes, Loops and MemoryTimeline in the compacted part of a trace.
#include <algorithm>
#include <bitset>

#include "long_lifetimes.h"
#include "loops.h"
#include "memory_timeline.h"

namespace alloctrace {
namespace {

using CellSet = std::bitset<LongLifetimes::kMaxCells>;

void put_cells(CompactionWriter& out, const CellSet& cells) {
  out.number(cells.count());
  std::size_t before = 0;
  for (std::size_t cell = 0; cell < cells.size(); ++cell) {
    if (!cells[cell]) continue;
    out.number(cell - before);
    before = cell;
  }
}

// Add the written cells to `cells`.
void read_cells(CompactionReader& in, CellSet& cells) {
  std::uint64_t cell = 0;
  for (std::size_t left = in.count(); left > 0; --left) {
    cell += in.below(cells.size());
    if (cell >= cells.size()) throw DecodeError("a cell out of range");
    cells.set(static_cast<std::size_t>(cell));
  }
}

}  // namespace

void LongLifetimes::save_run(CompactionWriter& out) const {
  out.number(begins_.size());
  std::uint64_t last = 0, last_ns = 0;
  for (std::size_t cell = 0; cell < begins_.size(); ++cell) {
    out.difference(begins_[cell], last);
    out.difference(static_cast<std::uint64_t>(begins_ns_[cell]), last_ns);
    last = begins_[cell];
    last_ns = static_cast<std::uint64_t>(begins_ns_[cell]);
  }
  out.signed_number(last_ns_);
  out.number(cell_length_);
  out.number(allocations_in_cell_);
  out.number(last_allocation_);
}

void LongLifetimes::restore_run(CompactionReader& in) {
  std::uint64_t last = 0, last_ns = 0;
  for (std::uint64_t left = in.below(kMaxCells + 1); left > 0; --left) {
    const std::uint64_t begin = in.difference(last);
    if ((!begins_.empty() && begin <= last) || begin > kMaxSequence) throw DecodeError("cells that are not in order");
    begins_.push_back(last = begin);
    begins_ns_.push_back(static_cast<std::int64_t>(last_ns = in.difference(last_ns)));
  }
  last_ns_ = in.signed_number();
  cell_length_ = in.number();
  allocations_in_cell_ = in.number();
  last_allocation_ = in.number();
  if (cell_length_ == 0 || cell_length_ > kMaxSequence / kMaxCells || allocations_in_cell_ > cell_length_ ||
      last_allocation_ > kMaxSequence) {
    throw DecodeError("cells of an invalid length");
  }
  cell_begin_ = begins_.empty() ? 0 : begins_.back();
}

void LongLifetimes::save_recent_frees(CompactionWriter& out) const {
  out.number(recent_frees_.size());
  for (const RecentFree& block : recent_frees_) {
    out.number(block.alloc_sequence);
    out.number(block.bytes);
    out.stack(block.stack);
    out.number(block.free_sequence);
  }
}

void LongLifetimes::restore_recent_frees(CompactionReader& in) {
  for (std::size_t left = in.count(4); left > 0; --left) {
    RecentFree& block = recent_frees_.emplace_back();
    block.alloc_sequence = in.number();
    block.bytes = in.number();
    block.stack = in.stack();
    block.free_sequence = in.number();
  }
}

void LongLifetimes::save_freed_groups(CompactionWriter& out) const {
  FreedGroups groups = freed_groups_;
  merge_equal(groups);
  out.number(groups.size());
  for (const FreedGroup& group : groups) {
    out.stack(group.stack);
    out.number(group.allocated_in);
    out.number(group.freed_in);
    out.number(group.blocks);
    out.number(group.bytes);
  }
}

void LongLifetimes::restore_freed_groups(CompactionReader& in) {
  const std::uint64_t cells = std::max<std::uint64_t>(begins_.size(), 1);
  for (std::size_t left = in.count(5); left > 0; --left) {
    FreedGroup& group = freed_groups_.emplace_back();
    group.stack = in.stack();
    group.allocated_in = static_cast<std::uint16_t>(in.below(cells));
    group.freed_in = static_cast<std::uint16_t>(in.below(cells));
    group.blocks = in.number();
    group.bytes = in.number();
    if (group.allocated_in > group.freed_in) throw DecodeError("a block freed before it was allocated");
  }
  merged_count_ = freed_groups_.size();
}

// Write the growth of each line that has grown. Lines are stack ids here.
void LongLifetimes::save_growths(CompactionWriter& out) const {
  std::size_t grown = 0;
  for (const Growth& growth : growths_) grown += growth.cells.any() ? 1 : 0;
  out.number(grown);
  for (std::uint32_t stack = 0; stack < growths_.size(); ++stack) {
    const Growth& growth = growths_[stack];
    if (growth.cells.none()) continue;
    out.stack(stack);
    out.number(growth.largest);
    put_cells(out, growth.cells);
  }
}

void LongLifetimes::restore_growths(CompactionReader& in, const std::function<std::uint32_t(std::uint32_t)>& line_of) {
  for (std::size_t left = in.count(3); left > 0; --left) {
    const std::uint32_t line = line_of(in.stack());
    raise_largest(line, in.number());
    read_cells(in, growths_[line].cells);
  }
}

void LongLifetimes::save(CompactionWriter& out) const {
  save_run(out);
  save_recent_frees(out);
  save_freed_groups(out);
  save_growths(out);
}

void LongLifetimes::restore(CompactionReader& in, const std::function<std::uint32_t(std::uint32_t)>& line_of) {
  restore_run(in);
  restore_recent_frees(in);
  restore_freed_groups(in);
  restore_growths(in, line_of);
}

void Loops::save(CompactionWriter& out) const {
  std::vector<std::uint64_t> keys(loops_.size());
  for (const auto& [key, number] : loop_by_key_) keys[number] = key;
  out.number(loops_.size());
  for (std::size_t number = 0; number < loops_.size(); ++number) {
    const Loop& loop = loops_[number];
    out.number(keys[number]);
    out.number(loop.caller);
    out.number(loop.function);
    out.number(loop.rounds);
    out.number(loop.stride);
    out.number(loop.begins.size());
    std::uint64_t last = 0;
    for (const std::uint64_t begin : loop.begins) {
      out.difference(begin, last);
      last = begin;
    }
  }
  out.number(last_.size());
  for (const std::uint32_t stack : last_) out.number(stack);
}

void Loops::restore(CompactionReader& in) {
  const std::size_t count = in.count(6);
  if (count > kMaxLoops) throw DecodeError("too many loops");
  const std::uint64_t stacks = std::max<std::size_t>(calls_.size(), 1);
  for (std::size_t number = 0; number < count; ++number) {
    loop_by_key_[in.number()] = static_cast<std::uint32_t>(number);
    Loop& loop = loops_.emplace_back();
    loop.caller = static_cast<std::uint32_t>(in.below(stacks));
    loop.function = static_cast<std::uint32_t>(in.below(stacks));
    loop.depth = loop.caller < calls_.size() ? calls_[loop.caller].depth : 0;
    loop.rounds = in.number();
    loop.stride = in.number();
    if (loop.stride == 0 || loop.stride > kMaxSequence) throw DecodeError("a loop without a stride");
    const std::size_t begins = in.count();
    if (begins > kMaxPositions) throw DecodeError("too many rounds");
    std::uint64_t last = 0;
    for (std::size_t index = 0; index < begins; ++index) loop.begins.push_back(last = in.difference(last));
  }
  for (std::size_t left = in.count(); left > 0; --left) last_.push_back(static_cast<std::uint32_t>(in.below(stacks)));
  if (last_.size() > definitions_->thread_count()) last_.resize(definitions_->thread_count());
}

void MemoryTimeline::save(CompactionWriter& out) const {
  for (const Peak* peak : {&allocated_peak_, &reserved_peak_}) {
    out.number(peak->bytes);
    out.number(peak->sequence);
    out.signed_number(peak->time_ns);
  }
  for (const std::uint64_t value : last_) out.number(value);
  out.number(intervals_.size());
  std::size_t before = 0;
  Measures level{};
  for (const Interval& at : intervals_) {
    out.number(at.number - before);
    before = at.number;
    out.number(at.highest_sequence);
    for (std::size_t i = 0; i < kMeasureCount; ++i) {
      out.difference(at.last[i], level[i]);
      out.number(at.last[i] - at.lowest[i]);
      out.number(at.highest[i] - at.last[i]);
    }
    level = at.last;
  }
}

void MemoryTimeline::restore(CompactionReader& in, std::uint64_t intervals,
                             const std::function<void(const Interval&)>& place) {
  for (Peak* peak : {&allocated_peak_, &reserved_peak_}) {
    peak->bytes = in.number();
    peak->sequence = in.below(kMaxSequence);
    peak->time_ns = in.signed_number();
  }
  for (std::uint64_t& value : last_) value = in.number();
  std::uint64_t index = 0, before = UINT64_MAX;
  Measures level{};
  for (std::size_t left = in.count(2 + 3 * kMeasureCount); left > 0; --left) {
    const std::uint64_t step = in.number();
    if ((before != UINT64_MAX && step == 0) || step >= intervals || index + step >= intervals) {
      throw DecodeError("an interval out of range");
    }
    before = index += step;
    Interval at;
    at.number = static_cast<std::size_t>(index);
    at.highest_sequence = in.below(kMaxSequence);
    for (std::size_t i = 0; i < kMeasureCount; ++i) {
      at.last[i] = in.difference(level[i]);
      at.lowest[i] = at.last[i] - in.number();
      at.highest[i] = at.last[i] + in.number();
    }
    level = at.last;
    place(at);
  }
}

}  // namespace alloctrace
