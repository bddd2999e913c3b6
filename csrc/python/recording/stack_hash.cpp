#include "stack_hash.h"

#if ALLOCTRACE_KNOWN_LAYOUT
namespace alloctrace::python {

StackHash hash_of_deep_stack(const Frame* frame, std::uint64_t generation, const CodeExtent& module_calls,
                             LastWalk& last) noexcept {
  std::uint64_t hash = mix(generation ^ 0xA0761D6478BD642Fu, kHashFactor);
  std::uint32_t frames = 0;
  for (; frame != nullptr && frames < kMaxFrames; frame = caller(frame), ++frames) {
    hash = mix(hash ^ instruction_of(frame, module_calls), kHashFactor);
  }
  // Said for the next walk: it would look at as many frames in vain. Where it is wrong, it is once.
  last.is_deeper = frames > LastWalk::kMost;
  return {hash, frames};
}

StackHash hash_anew(const Frame* innermost, std::uint64_t generation, const CodeExtent& module_calls,
                    LastWalk& last) noexcept {
  last.frames = 0;
  return hash_stack(innermost, generation, module_calls, last);
}

}  // namespace alloctrace::python
#endif
