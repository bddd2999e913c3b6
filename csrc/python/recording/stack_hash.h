// Hash of a Python stack: equal for the same instructions of the same code, from the outermost frame inwards.
//
// Most outer frames of a thread have not moved between two events. LastWalk keeps the address, position and hash of
// each frame of the last walk, so that an unmoved frame costs two comparisons instead of a step of the hash.
//
// Rule: a remembered frame is read only after a live frame's caller turned out to be that frame. A generator keeps its
// address while the frames below it return, and CPython unmaps the memory of returned frames: reading one crashes the
// program. The branch on each caller is predicted, so the processor reads the next frames without waiting for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/base/hash.h"
#include "cpython_layout.h"
#include "frame_walk.h"

namespace alloctrace::python {

// Combine both halves of the product, so that each bit of either factor affects all bits of the result.
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

// Maximum number of frames read: tracebacks hide at most one frame for each that they show.
inline constexpr std::uint32_t kMaxFrames = 2 * kMaxDepth;

// Return a key for the module that a frame calls. The key includes the type: unnamed modules are recorded by class, and
// modules of several classes may succeed each other at one address. Never 0, which would hash like no module call.
inline std::uint64_t module_key(const Frame* frame) noexcept {
  const PyObject* const module = first_argument(frame);
  if (module == nullptr) return 1;
  return reinterpret_cast<std::uint64_t>(module) +
         reinterpret_cast<std::uint64_t>(Py_TYPE(module)) * 0xC2B2AE3D27D4EB4Fu;
}

inline const Frame* frame_of(const LastWalk& last, std::uint32_t step) noexcept {
  return static_cast<const Frame*>(last.steps[step + 1].caller);
}

// Return whether the first `frames` frames of the last walk have not moved, execute the same instructions and call the
// same modules. `innermost`, the last of them, is live; only its caller is compared, not its position.
inline bool are_unchanged_below(const LastWalk& last, std::uint32_t frames, const Frame* innermost) noexcept {
  const LastWalk::Step* step = &last.steps[frames];
  const Frame* frame = innermost;
  if (caller(frame) != step->caller) return false;
  std::uint64_t moved = 0;
  while ((frame = static_cast<const Frame*>(step->caller)) != nullptr) {
    --step;
    if (caller(frame) != step->caller) return false;  // the frames below may be gone: see the rule above
    moved |= position(frame) ^ step->position;
  }
  if (moved != 0) return false;
  for (std::uint32_t i = 0; i < last.module_count && last.modules[i].step < frames; ++i) {
    if (module_key(frame_of(last, last.modules[i].step)) != last.modules[i].key) return false;
  }
  return true;
}

// Hash a stack that may differ from the last walk in any frame.
[[gnu::noinline]] StackHash hash_moved_stack(const Frame* innermost, std::uint64_t generation,
                                             const CodeExtent& module_code, LastWalk& last) noexcept;

inline StackHash hash_stack(const Frame* innermost, std::uint64_t generation, const CodeExtent& module_code,
                            LastWalk& last) noexcept {
  // Usual case: only the innermost frame has moved.
  const std::uint32_t frames = last.frames;
  const std::uint64_t instruction = position(innermost);
  if (!last.is_too_deep && last.generation == generation && frames != 0 && frame_of(last, frames) == innermost &&
      !is_in_code(module_code, innermost, instruction) && are_unchanged_below(last, frames, innermost)) [[likely]] {
    if (last.module_count != 0 && last.modules[last.module_count - 1].step == frames) --last.module_count;
    last.steps[frames].position = instruction;
    return {last.steps[frames].hash = mix(last.steps[frames - 1].hash ^ instruction, kGoldenRatio), frames};
  }
  return hash_moved_stack(innermost, generation, module_code, last);
}

#ifdef ALLOCTRACE_CHECKS
// Check builds compare the result of hash_stack, and all that it remembers, with the live chain.
void check_stack_hash(const StackHash& hash, const Frame* innermost, std::uint64_t generation,
                      const CodeExtent& module_code, const LastWalk& last) noexcept;
#else
inline void check_stack_hash(const StackHash&, const Frame*, std::uint64_t, const CodeExtent&,
                             const LastWalk&) noexcept {}
#endif

#endif  // ALLOCTRACE_KNOWN_LAYOUT

}  // namespace alloctrace::python
