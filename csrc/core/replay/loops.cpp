#include "loops.h"

#include <algorithm>
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
  // If the functions differ, the caller iterates.
  const bool is_same = last.code == next.code;
  return find_or_add(caller, is_same ? next.code : UINT32_MAX, is_same || caller == 0 ? second : caller);
}

std::uint32_t Loops::find_or_add(std::uint32_t caller, std::uint32_t code, std::uint32_t function) {
  const std::uint64_t key = std::uint64_t{caller} << 32 | code;
  const auto [entry, is_new] = loop_by_key_.try_emplace(key, static_cast<std::uint32_t>(loops_.size()));
  if (is_new) {
    if (loops_.size() == kMaxLoops) {
      loop_by_key_.erase(entry);
      return kNoLoop;
    }
    Loop loop;
    loop.caller = caller;
    loop.function = function;
    loop.depth = calls_[caller].depth;
    loops_.push_back(loop);
  }
  return entry->second;
}

void Loops::enter_thread(std::uint32_t stack, std::uint64_t sequence) {
  if (std::all_of(last_.begin(), last_.end(), [](std::uint32_t last) { return last == 0; })) return;
  while (stack > 0 && stack < calls_.size()) {
    const std::size_t loop_count = loops_.size();
    const std::uint32_t caller = calls_[stack].caller;
    const std::uint32_t loop = find_or_add(caller, definitions_->frame(stack).code, stack);
    // The first thread that enters a function begins no new round.
    if (loop != kNoLoop && loops_.size() == loop_count) add_round(loop, sequence);
    stack = caller;
  }
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
