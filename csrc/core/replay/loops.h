// The loops of a program, from the stacks of its events alone: where a function is seen at an earlier instruction than
// at the event before, under the same calls, it has begun again.
//
// Of two successive events of a thread the frames are compared from the outermost on. Where they first differ, the same
// function further back has gone round a loop or was called again; another function there was called by the same
// instruction, which a loop must have reached again.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "../base/seeded_hash.h"
#include "../format/definitions.h"
#include "../format/event.h"
#include "fold_codec.h"
#include "same_stacks.h"

namespace alloctrace {

class Loops {
 public:
  static constexpr std::size_t kPositions = 1024;

  // What begins again: a function under a stack. In rounds, as seen.
  struct Loop {
    std::uint32_t caller = 0;    // the stack that calls it
    std::uint32_t function = 0;  // a stack that ends in it: the first one seen
    std::uint32_t depth = 0;     // of the caller: 0 for the outermost function
    std::uint64_t rounds = 0;
    // The event that begins each `stride`-th round, at most kPositions of them.
    std::uint64_t stride = 1;
    std::vector<std::uint64_t> begins;
  };

  // Of a trace whose definitions are all read.
  explicit Loops(const Definitions& definitions);

  void take(const Event& event, std::uint64_t sequence) {
    // The id of a thread whose definition was lost to damage may be any number.
    if (event.stack == 0 || event.thread >= definitions_->thread_count()) return;
    if (event.thread >= last_.size()) last_.resize(definitions_->thread_count());
    // A loop over the layers of a model goes round, whichever of them it calls.
    const std::uint32_t now = same_.of(event.stack);
    const std::uint32_t before = last_[event.thread];
    if (before == now) return;
    last_[event.thread] = now;
    if (before == 0) return;
    const std::uint64_t pair = std::uint64_t{before} << 32 | now;
    Known& known = known_[(pair * 0x9e3779b97f4a7c15) >> (64 - kKnownBits)];
    if (known.pair != pair) known = {pair, loop_between(before, now)};
    if (known.loop != kNone) note(known.loop, sequence);
  }
  const std::vector<Loop>& loops() const { return loops_; }

  void save(FoldWriter& fold) const;
  void restore(FoldReader& fold);

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr unsigned kKnownBits = 16;
  // Enough for any program whose stacks are its own; a damaged trace must not take all memory.
  static constexpr std::size_t kMostLoops = 100'000;
  struct Call {
    std::uint32_t caller = 0, depth = 0;
  };
  struct Known {
    std::uint64_t pair = 0;
    std::uint32_t loop = kNone;
  };

  std::uint32_t loop_between(std::uint32_t before, std::uint32_t now);
  void note(std::uint32_t loop, std::uint64_t sequence);

  const Definitions* definitions_;
  SameStacks same_;
  std::vector<Call> calls_;          // by stack
  std::vector<std::uint32_t> last_;  // by thread
  std::vector<Known> known_{std::size_t{1} << kKnownBits};
  std::unordered_map<std::uint64_t, std::uint32_t, SeededHash> number_;  // of a loop, by caller and code
  std::vector<Loop> loops_;
};

}  // namespace alloctrace
