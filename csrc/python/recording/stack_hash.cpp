#include "stack_hash.h"

#if ALLOCTRACE_KNOWN_LAYOUT
namespace alloctrace::python {
namespace {

// From the innermost frame outwards, so that nothing has to be kept: for stacks of more than LastWalk::kMost frames.
[[gnu::cold]] StackHash hash_of_deep_stack(const Frame* frame, std::uint64_t generation, const CodeExtent& module_calls,
                                           LastWalk& last) noexcept {
  std::uint64_t hash = mix(generation ^ 0xA0761D6478BD642Fu, kHashFactor);
  std::uint32_t frames = 0;
  for (; frame != nullptr && frames < kMaxFrames; frame = caller(frame), ++frames) {
    std::uint64_t instruction = position(frame);
    if (is_within(module_calls, frame, instruction)) instruction ^= module_key(frame);
    hash = mix(hash ^ instruction, kHashFactor);
  }
  // Said for the next walk: it would look at as many frames in vain. Where it is wrong, it is once.
  last.is_deeper = frames > LastWalk::kMost;
  return {hash, frames};
}

// How many frames of the last walk there are up to this one; 0 when it is none of them. From 3.11 on frames mostly lie
// the higher the further in they are, so that the search ends soon.
std::uint32_t kept_up_to(const LastWalk& last, const Frame* frame) noexcept {
  std::uint32_t kept = last.frames;
  while (kept != 0 && frame_of(last, kept) > frame) --kept;
  return kept != 0 && frame_of(last, kept) == frame ? kept : 0;
}

constexpr std::uint32_t kOtherCallers = UINT32_MAX;

// Of the first `most` frames of the last walk, how many are all as they were. kOtherCallers: they are no longer one
// another's callers.
[[gnu::cold]] std::uint32_t compare_each(const LastWalk& last, std::uint32_t most) noexcept {
  std::uint32_t unchanged = most;
  std::uint32_t module = last.module_calls;
  while (module != 0 && last.modules[module - 1].step > most) --module;
  for (std::uint32_t step = most; step != 0; --step) {
    const Frame* const frame = frame_of(last, step);
    bool is_same = position(frame) == last.steps[step].position;
    if (module != 0 && last.modules[module - 1].step == step) {
      --module;
      is_same = is_same && module_key(frame) == last.modules[module].key;
    }
    if (!is_same) unchanged = step - 1;
    if (caller(frame) != last.steps[step].caller) return kOtherCallers;
  }
  return unchanged;
}

// Whether a frame that executes what it did calls the module that it called, if it calls one.
bool calls_the_same(const LastWalk& last, std::uint32_t step, const Frame* frame) noexcept {
  for (std::uint32_t i = last.module_calls; i != 0 && last.modules[i - 1].step >= step; --i) {
    if (last.modules[i - 1].step == step) return module_key(frame) == last.modules[i - 1].key;
  }
  return true;
}

// The same where, as nearly always, the inner ones have moved on and the others have not.
std::uint32_t unchanged_of(const LastWalk& last, std::uint32_t most) noexcept {
  for (std::uint32_t step = most; step != 0; --step) {
    const Frame* const frame = frame_of(last, step);
    if (position(frame) == last.steps[step].position) {
      return calls_the_same(last, step, frame) && are_unchanged_below(last, step, frame) ? step
                                                                                         : compare_each(last, step);
    }
    if (caller(frame) != last.steps[step].caller) return kOtherCallers;
  }
  return 0;
}

}  // namespace

StackHash hash_moved_stack(const Frame* innermost, std::uint64_t generation, const CodeExtent& module_calls,
                           LastWalk& last) noexcept {
  if (last.is_deeper) return hash_of_deep_stack(innermost, generation, module_calls, last);
  if (last.generation != generation) {
    last.generation = generation;
    last.frames = last.module_calls = 0;
    last.steps[0].hash = mix(generation ^ 0xD6E8FEB86659FD93u, kHashFactor);
  }

  // The frames that were not there, innermost first.
  std::uint32_t added = 0;
  std::uint32_t kept = 0;
  for (const Frame* frame = innermost; frame != nullptr; frame = caller(frame)) {
    kept = kept_up_to(last, frame);
    if (kept != 0) break;
    if (added == LastWalk::kMost) return hash_of_deep_stack(innermost, generation, module_calls, last);
    last.added[added++] = frame;
  }
  const std::uint32_t unchanged = unchanged_of(last, kept);
  if (unchanged == kOtherCallers) {
    last.frames = last.module_calls = 0;
    return hash_moved_stack(innermost, generation, module_calls, last);
  }

  // The hashes of the others are no longer theirs.
  last.frames = unchanged;
  while (last.module_calls != 0 && last.modules[last.module_calls - 1].step > unchanged) --last.module_calls;
  const std::uint32_t frames = kept + added;
  if (frames > LastWalk::kMost) return hash_of_deep_stack(innermost, generation, module_calls, last);
  std::uint64_t hash = last.steps[unchanged].hash;
  for (std::uint32_t step = unchanged + 1; step <= frames; ++step) {
    if (step > kept) last.steps[step + 1].caller = last.added[frames - step];
    const Frame* const frame = frame_of(last, step);
    std::uint64_t instruction = position(frame);
    last.steps[step].position = instruction;
    if (is_within(module_calls, frame, instruction)) {
      const std::uint64_t key = module_key(frame);
      last.modules[last.module_calls++] = {step, key};
      instruction ^= key;
    }
    last.steps[step].hash = hash = mix(hash ^ instruction, kHashFactor);
  }
  last.frames = frames;
  return {hash, frames};
}

}  // namespace alloctrace::python
#endif
