// A Python stack as one number: the same for the same instructions of the same code, from the outermost frame inwards.
//
// Between two events of a thread most of its outer frames have not moved. Where they lay and what they executed is kept
// from the last walk, with the hash up to each. What costs time in a walk is waiting: the address of the next frame
// comes from memory, and each step of a hash needs the one before. To find that a frame is where it was, nothing has to
// be waited for: its address is known, and the answers for all frames are only asked for together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpython_layout.h"
#include "frame_walk.h"

namespace alloctrace::python {

// Both halves of the product, so that every bit of either factor reaches every bit of the result.
inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

#if ALLOCTRACE_KNOWN_LAYOUT

struct StackHash {
  std::uint64_t hash;
  std::uint32_t frames;
};

// How many frames are looked at, including those that no traceback shows: at most one for each that it does show.
inline constexpr std::uint32_t kMaxFrames = 2 * kMaxDepth;

// Which module a frame calls. With its type: of modules that nobody has named only the class is known, and those that
// come and go at one address may be of several. Never 0: what calls a module must not look like what calls none.
inline std::uint64_t module_key(const Frame* frame) noexcept {
  const PyObject* const module = first_argument(frame);
  if (module == nullptr) return 1;
  return reinterpret_cast<std::uint64_t>(module) +
         reinterpret_cast<std::uint64_t>(Py_TYPE(module)) * 0xC2B2AE3D27D4EB4Fu;
}

inline constexpr std::uint64_t kHashFactor = 0x9E3779B97F4A7C15u;

inline const Frame* frame_of(const LastWalk& last, std::uint32_t step) noexcept {
  return static_cast<const Frame*>(last.steps[step + 1].caller);
}

inline CallerAndPosition caller_and_position(const LastWalk::Step& step) noexcept {
  CallerAndPosition both;
  std::memcpy(&both, &step, sizeof both);
  return both;
}
static_assert(offsetof(LastWalk::Step, position) == sizeof(void*));

// Whether the first frames of the last walk, the innermost of which is `frame`, are where they were, execute what they
// did, and call the same modules. Of that innermost one only the caller is compared.
inline bool are_unchanged_below(const LastWalk& last, std::uint32_t frames, const Frame* frame) noexcept {
  // Without a branch for each: the processor compares several at a time. The caller, too: a generator, or what took the
  // place of a frame, may be called from elsewhere now.
  const LastWalk::Step* step = &last.steps[frames];
  if (caller(frame) != step->caller) return false;
  CallerAndPosition differs{0, 0};
  while ((frame = static_cast<const Frame*>(step->caller)) != nullptr) {
    differs |= caller_and_position(frame) ^ caller_and_position(*--step);
  }
  if ((differs[0] | differs[1]) != 0) return false;
  for (std::uint32_t i = 0; i < last.module_calls && last.modules[i].step < frames; ++i) {
    if (module_key(frame_of(last, last.modules[i].step)) != last.modules[i].key) return false;
  }
  return true;
}

// The stack where the last walk may have been another one.
[[gnu::noinline]] StackHash hash_moved_stack(const Frame* innermost, std::uint64_t generation,
                                             const CodeExtent& module_calls, LastWalk& last) noexcept;

inline StackHash hash_stack(const Frame* innermost, std::uint64_t generation, const CodeExtent& module_calls,
                            LastWalk& last) noexcept {
  // Mostly the innermost frame is still the same, and executes something else.
  const std::uint32_t frames = last.frames;
  const std::uint64_t instruction = position(innermost);
  if (!last.is_deeper && last.generation == generation && frames != 0 && frame_of(last, frames) == innermost &&
      !is_within(module_calls, innermost, instruction) && are_unchanged_below(last, frames, innermost)) [[likely]] {
    if (last.module_calls != 0 && last.modules[last.module_calls - 1].step == frames) --last.module_calls;
    last.steps[frames].position = instruction;
    return {last.steps[frames].hash = mix(last.steps[frames - 1].hash ^ instruction, kHashFactor), frames};
  }
  return hash_moved_stack(innermost, generation, module_calls, last);
}

#endif  // ALLOCTRACE_KNOWN_LAYOUT

}  // namespace alloctrace::python
