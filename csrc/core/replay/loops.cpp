#include "loops.h"

#include <utility>

namespace alloctrace {

Loops::Loops(const Definitions& definitions)
    : definitions_(&definitions), same_stacks_(definitions), calls_(definitions.frame_count()) {
  for (std::uint32_t stack = 1; stack < calls_.size(); ++stack) {
    std::uint32_t caller = same_stacks_.first_equal(definitions.frame(stack).parent);
    if (caller >= stack) caller = 0;  // corrupt: callers have lower ids; prevents a cycle
    calls_[stack] = {caller, calls_[caller].depth + 1};
  }
}

std::uint32_t Loops::loop_between(std::uint32_t before, std::uint32_t now) {
  if (before >= calls_.size() || now >= calls_.size()) return kNoLoop;
  // Find the innermost common frame; `first` and `second` become the frames that it calls in each stack.
  std::uint32_t first = 0, second = 0;
  for (std::uint32_t other = now; before != other;) {
    if (calls_[before].depth >= calls_[other].depth) {
      first = std::exchange(before, calls_[before].caller);
    } else {
      second = std::exchange(other, calls_[other].caller);
    }
  }
  if (first == 0 || second == 0) return kNoLoop;  // one stack contains the other
  const std::uint32_t caller = before;
  const FrameRecord& last = definitions_->frame(first);
  const FrameRecord& next = definitions_->frame(second);
  if (last.code == next.code && next.instruction >= last.instruction) return kNoLoop;  // went forward
  const std::uint64_t key = std::uint64_t{caller} << 32 | (last.code == next.code ? next.code : UINT32_MAX);
  const auto [entry, is_new] = loop_by_key_.try_emplace(key, static_cast<std::uint32_t>(loops_.size()));
  if (is_new) {
    if (loops_.size() == kMaxLoops) {
      loop_by_key_.erase(entry);
      return kNoLoop;
    }
    Loop loop;
    loop.caller = caller;
    // If the functions differ, the caller iterates.
    loop.function = last.code == next.code || caller == 0 ? second : caller;
    loop.depth = calls_[caller].depth;
    loops_.push_back(loop);
  }
  return entry->second;
}

void Loops::add_round(std::uint32_t number, std::uint64_t sequence) {
  Loop& loop = loops_[number];
  if (loop.rounds % loop.stride == 0) {
    if (loop.begins.size() == kMaxPositions) {
      for (std::size_t index = 0; index < kMaxPositions / 2; ++index) loop.begins[index] = loop.begins[2 * index];
      loop.begins.resize(kMaxPositions / 2);
      loop.stride *= 2;
    }
    if (loop.rounds % loop.stride == 0) loop.begins.push_back(sequence);
  }
  ++loop.rounds;
}

}  // namespace alloctrace
