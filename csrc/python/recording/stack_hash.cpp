#include "stack_hash.h"

#if ALLOCTRACE_KNOWN_LAYOUT
namespace alloctrace::python {

StackHash hash_of_deep_stack(const Frame* frame, std::uint64_t generation, const CodeExtent& module_calls) noexcept {
  std::uint64_t hash = mix(generation ^ 0xA0761D6478BD642Fu, kHashFactor);
  std::uint32_t frames = 0;
  for (; frame != nullptr && frames < kMaxFrames; frame = caller(frame), ++frames) {
    hash = mix(hash ^ instruction_of(frame, module_calls), kHashFactor);
  }
  return {hash, frames};
}

StackHash hash_anew(const Frame* innermost, std::uint64_t generation, const CodeExtent& module_calls,
                    LastWalk& last) noexcept {
  last.frames = 0;
  return hash_stack(innermost, generation, module_calls, last);
}

}  // namespace alloctrace::python
#endif
