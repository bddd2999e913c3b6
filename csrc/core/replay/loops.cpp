#include "loops.h"

#include <utility>

namespace alloctrace {

Loops::Loops(const Definitions& definitions)
    : definitions_(&definitions), same_(definitions), calls_(definitions.frame_count()) {
  for (std::uint32_t stack = 1; stack < calls_.size(); ++stack) {
    std::uint32_t caller = same_.of(definitions.frame(stack).parent);
    if (caller >= stack) caller = 0;  // callers have lower ids; damage must not lead in circles
    calls_[stack] = {caller, calls_[caller].depth + 1};
  }
}

std::uint32_t Loops::loop_between(std::uint32_t before, std::uint32_t now) {
  if (before >= calls_.size() || now >= calls_.size()) return kNone;
  // Up to the innermost frame that both have in common; `first` and `second` are the frames that it leads to.
  std::uint32_t first = 0, second = 0;
  for (std::uint32_t other = now; before != other;) {
    if (calls_[before].depth >= calls_[other].depth) {
      first = std::exchange(before, calls_[before].caller);
    } else {
      second = std::exchange(other, calls_[other].caller);
    }
  }
  if (first == 0 || second == 0) return kNone;  // one calls what leads to the other
  const std::uint32_t caller = before;
  const FrameRecord& was = definitions_->frame(first);
  const FrameRecord& is = definitions_->frame(second);
  if (was.code == is.code && is.instruction >= was.instruction) return kNone;  // it went on
  const std::uint64_t key = std::uint64_t{caller} << 32 | (was.code == is.code ? is.code : UINT32_MAX);
  const auto [found, is_new] = number_.try_emplace(key, static_cast<std::uint32_t>(loops_.size()));
  if (is_new) {
    if (loops_.size() == kMostLoops) {
      number_.erase(found);
      return kNone;
    }
    Loop loop;
    loop.caller = caller;
    // Of different functions that the same instruction calls, it is the caller that goes round.
    loop.function = was.code == is.code || caller == 0 ? second : caller;
    loop.depth = calls_[caller].depth;
    loops_.push_back(loop);
  }
  return found->second;
}

void Loops::note(std::uint32_t number, std::uint64_t sequence) {
  Loop& loop = loops_[number];
  if (loop.rounds % loop.stride == 0) {
    if (loop.begins.size() == kPositions) {
      for (std::size_t index = 0; index < kPositions / 2; ++index) loop.begins[index] = loop.begins[2 * index];
      loop.begins.resize(kPositions / 2);
      loop.stride *= 2;
    }
    if (loop.rounds % loop.stride == 0) loop.begins.push_back(sequence);
  }
  ++loop.rounds;
}

}  // namespace alloctrace
