// Loops of a program, found in the stacks of its allocations.
// The stacks of two successive events of a thread are compared from the outermost frame on. At the first difference,
// the same function at an earlier instruction has iterated or was called again. Another function at that depth was
// called by the same instruction of the caller, so the caller has iterated.
// Threads that each run one request have a single such stack. The first stack of a new thread enters all of its
// functions again that another thread's first stack entered. This leaves out the first thread, which runs the program.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "../base/hash.h"
#include "../format/compaction_codec.h"
#include "../format/definitions.h"
#include "../format/event.h"
#include "stack_kinds.h"

namespace alloctrace {

class Loops {
 public:
  static constexpr std::size_t kMaxPositions = 1024;

  // A function that repeats under one calling stack.
  struct Loop {
    std::uint32_t caller = 0;    // the stack that calls it
    std::uint32_t function = 0;  // the first stack seen that ends in the function
    std::uint32_t depth = 0;     // of the caller: 0 for the outermost function
    std::uint64_t rounds = 0;
    // First events of every `stride`-th round, at most kMaxPositions of them.
    std::uint64_t stride = 1;
    std::vector<std::uint64_t> begins;
  };

  // `definitions`: complete, of the whole trace.
  explicit Loops(const Definitions& definitions);

  void add(const Event& event, std::uint64_t sequence) {
    // In a corrupt trace a thread id may be any number.
    if (event.stack == 0 || event.thread >= definitions_->thread_count()) return;
    if (event.thread >= last_.size()) last_.resize(definitions_->thread_count());
    // Compare stacks without their modules: a loop over the layers of a model calls another module in each round.
    const std::uint32_t now = same_stacks_.first_equal(event.stack);
    const std::uint32_t before = last_[event.thread];
    if (before == now) return;
    if (before == 0) enter_thread(now, sequence);
    last_[event.thread] = now;
    if (before == 0) return;
    const std::uint64_t pair = std::uint64_t{before} << 32 | now;
    CachedPair& cached = cache_[hash_to_slot(pair, kCacheBits)];
    if (cached.pair != pair) cached = {pair, loop_between(before, now)};
    if (cached.loop != kNoLoop) add_round(cached.loop, sequence);
  }
  const std::vector<Loop>& loops() const { return loops_; }

  void save(CompactionWriter& out) const;
  void restore(CompactionReader& in);

 private:
  static constexpr std::uint32_t kNoLoop = UINT32_MAX;
  static constexpr unsigned kCacheBits = 16;
  // More than any program has: limits the memory that a corrupt trace takes.
  static constexpr std::size_t kMaxLoops = 100'000;
  struct Call {
    std::uint32_t caller = 0, depth = 0;
  };
  struct CachedPair {
    std::uint64_t pair = 0;
    std::uint32_t loop = kNoLoop;
  };

  std::uint32_t loop_between(std::uint32_t before, std::uint32_t now);
  // The loop of a function, given by a stack that ends in it, under a caller. A new loop has no rounds.
  std::uint32_t find_or_add(std::uint32_t caller, std::uint32_t code, std::uint32_t function);
  void enter_thread(std::uint32_t stack, std::uint64_t sequence);
  void add_round(std::uint32_t loop, std::uint64_t sequence);

  const Definitions* definitions_;
  SameStacks same_stacks_;
  std::vector<Call> calls_;          // by stack
  std::vector<std::uint32_t> last_;  // by thread
  std::vector<CachedPair> cache_{std::size_t{1} << kCacheBits};
  std::unordered_map<std::uint64_t, std::uint32_t, SeededHash> loop_by_key_;  // of a loop, by caller and code
  std::vector<Loop> loops_;
};

}  // namespace alloctrace
