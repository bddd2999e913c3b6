// A Python stack as one number: the same for the same instructions of the same code, from the outermost frame inwards.
//
// Between two events of a thread most of its outer frames have not moved. Where they lay and what they executed is kept
// from the last walk, with the hash up to each. What costs time in a walk is waiting: the address of the next frame
// comes from memory, and each step of a hash needs the one before. To find that a frame is where it was, nothing has to
// be waited for: the processor goes on with the address that is kept while it still compares.
#pragma once

#include <cstdint>

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

// What a frame executes, and for whom where it calls a module.
inline std::uint64_t instruction_of(const Frame* frame, const CodeExtent& module_calls) noexcept {
  const std::uint64_t at = position(frame);
  if (is_within(module_calls, frame, at)) [[unlikely]]
    return at ^ module_key(frame);
  return at;
}

inline constexpr std::uint64_t kHashFactor = 0x9E3779B97F4A7C15u;

// From the innermost frame outwards, so that nothing has to be kept: for stacks of more than LastWalk::kMost frames.
[[gnu::cold]] StackHash hash_of_deep_stack(const Frame* frame, std::uint64_t generation, const CodeExtent& module_calls,
                                           LastWalk& last) noexcept;
// As hash_stack, with nothing known of the last walk.
[[gnu::cold]] StackHash hash_anew(const Frame* innermost, std::uint64_t generation, const CodeExtent& module_calls,
                                  LastWalk& last) noexcept;

// How many frames of the last walk there are up to this one; 0 when it is none of them. From 3.11 on frames mostly lie
// the higher the further in they are, so that the search ends soon.
inline std::uint32_t kept_up_to(const LastWalk& last, const Frame* frame) noexcept {
  std::uint32_t kept = last.frames;
  while (kept != 0 && last.frame[kept - 1] > frame) --kept;
  return kept != 0 && last.frame[kept - 1] == frame ? kept : 0;
}

inline StackHash hash_stack(const Frame* const innermost, std::uint64_t generation, const CodeExtent& module_calls,
                            LastWalk& last) noexcept {
  if (last.is_deeper) [[unlikely]]
    return hash_of_deep_stack(innermost, generation, module_calls, last);
  if (last.generation != generation) {
    last.generation = generation;
    last.frames = 0;
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

  // Those that were: as far as the last one that executes something else, the hash is known.
  std::uint32_t unchanged = kept;
  for (std::uint32_t i = kept; i-- > 0;) {
    const Frame* const frame = static_cast<const Frame*>(last.frame[i]);
    if (position(frame) != last.instruction[i]) {  // or it calls a module
      const std::uint64_t instruction = instruction_of(frame, module_calls);
      if (instruction != last.instruction[i]) {
        last.instruction[i] = instruction;
        unchanged = i;
      }
    }
    // A generator, or what took the place of a frame, may be called from elsewhere now.
    if (caller(frame) != (i == 0 ? nullptr : last.frame[i - 1])) [[unlikely]]
      return hash_anew(innermost, generation, module_calls, last);
  }

  if (kept + added > LastWalk::kMost) [[unlikely]] {
    last.frames = unchanged;  // the hashes of the others are no longer theirs
    return hash_of_deep_stack(innermost, generation, module_calls, last);
  }
  last.frames = kept + added;
  for (std::uint32_t i = kept; i < last.frames; ++i) {
    const Frame* const frame = static_cast<const Frame*>(last.added[last.frames - 1 - i]);
    last.frame[i] = frame;
    last.instruction[i] = instruction_of(frame, module_calls);
  }
  std::uint64_t hash = unchanged == 0 ? mix(generation ^ 0xD6E8FEB86659FD93u, kHashFactor) : last.hash[unchanged - 1];
  for (std::uint32_t i = unchanged; i < last.frames; ++i) {
    last.hash[i] = hash = mix(hash ^ last.instruction[i], kHashFactor);
  }
  return {hash, last.frames};
}

#endif  // ALLOCTRACE_KNOWN_LAYOUT

}  // namespace alloctrace::python
