#include "loops.h"

#include <algorithm>

namespace alloctrace {

// Outermost frame first.
void Loops::chain_of(std::uint32_t stack, std::vector<std::uint32_t>& chain) const {
  chain.clear();
  while (stack != 0 && stack < definitions_->frame_count() && chain.size() < kDeepest) {
    chain.push_back(stack);
    const std::uint32_t parent = definitions_->frame(stack).parent;
    stack = parent < stack ? parent : 0;  // callers have lower ids; damage must not lead in circles
  }
  std::reverse(chain.begin(), chain.end());
}

std::uint32_t Loops::loop_between(std::uint32_t before, std::uint32_t now) {
  chain_of(before, chain_before_);
  chain_of(now, chain_now_);
  const std::size_t common = std::min(chain_before_.size(), chain_now_.size());
  std::size_t at = 0;
  while (at < common && chain_before_[at] == chain_now_[at]) ++at;
  if (at == common) return kNone;  // one calls what leads to the other
  const FrameRecord& was = definitions_->frame(chain_before_[at]);
  const FrameRecord& is = definitions_->frame(chain_now_[at]);
  if (was.code == is.code && is.instruction >= was.instruction) return kNone;  // it went on
  const std::uint32_t caller = at == 0 ? 0 : chain_now_[at - 1];
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
    loop.function = was.code == is.code || caller == 0 ? chain_now_[at] : caller;
    loop.depth = static_cast<std::uint32_t>(at);
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
