#include "frame_walk.h"

#include <algorithm>
#include <atomic>

#include "cpython_layout.h"
#include "public_walk.h"
#include "walk_mode.h"

namespace alloctrace::python {
namespace {

std::atomic<WalkMode> walk_mode{WalkMode::kPublicApi};

}  // namespace

void set_walk_mode(WalkMode mode) noexcept { walk_mode.store(mode, std::memory_order_relaxed); }
void use_public_api() noexcept { set_walk_mode(WalkMode::kPublicApi); }

#if ALLOCTRACE_KNOWN_LAYOUT
namespace {

// How many frames are looked at, including those that no traceback shows: at most one for each that it does show.
constexpr std::uint32_t kMaxFrames = 2 * kMaxDepth;

// Both halves of the product, so that every bit of either factor reaches every bit of the result.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

struct StackHash {
  std::uint64_t hash;
  std::uint32_t frames;
};

// The whole fast path: two loads a frame (three in 3.10).
StackHash hash_stack(const Frame* frame, std::uint64_t generation) noexcept {
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15u;
  std::uint64_t hash = mix(generation ^ 0xD6E8FEB86659FD93u, kFactor);
  std::uint32_t frames = 0;
  for (; frame != nullptr && frames < kMaxFrames; frame = caller(frame), ++frames) {
    hash = mix(hash ^ position(frame), kFactor);
  }
  return {hash, frames};
}

// The slow path. The chain runs from the innermost frame outwards and the table wants it the other way round, so it is
// read in parts, starting at the outer end: a buffer for the whole chain would not fit on a small thread's stack, and a
// hook must not fail for lack of memory.
std::uint32_t define_stack(const Frame* innermost, CodeRegistry& registry) {
  struct Call {
    PyCodeObject* code;
    std::uint32_t instruction;
  };
  constexpr std::uint32_t kPart = 128;
  Call calls[kPart];

  const auto for_each_visible = [innermost](auto&& visit) {
    std::uint32_t visible = 0;
    std::uint32_t frames = 0;
    for (const Frame* frame = innermost; frame && frames < kMaxFrames && visible < kMaxDepth; frame = caller(frame)) {
      ++frames;
      if (PyCodeObject* const code = visible_code(frame)) {
        if (!visit(visible, code, frame)) break;
        ++visible;
      }
    }
    return visible;
  };

  std::uint32_t stack = 0;
  std::uint32_t remaining = for_each_visible([](std::uint32_t, PyCodeObject*, const Frame*) { return true; });
  while (remaining > 0) {
    const std::uint32_t count = std::min(remaining, kPart);
    const std::uint32_t skipped = remaining - count;
    for_each_visible([&](std::uint32_t index, PyCodeObject* code, const Frame* frame) {
      if (index >= remaining) return false;
      if (index >= skipped) calls[index - skipped] = {code, instruction_offset(frame, code)};
      return true;
    });
    for (std::uint32_t i = count; i-- > 0;) {
      const std::uint32_t code = registry.code_id(calls[i].code);
      if (code == 0) return kStackNotStored;
      stack = registry.table().frame(stack, code, calls[i].instruction);
      if (stack == 0) return kStackNotStored;
    }
    remaining = skipped;
  }
  return stack;
}

// What innermost_position() returns when no Python code runs.
constexpr std::uint64_t kNoFrame = 1;

std::uint64_t position_of(const Frame* innermost) noexcept {
  return mix(reinterpret_cast<std::uintptr_t>(innermost) ^ 0x9E3779B97F4A7C15u, position(innermost)) | 2;
}

std::uint32_t direct_stack(StackCache& cache, CodeRegistry& registry) noexcept {
  cache.innermost = kNoFrame;
  PyThreadState* const thread = PyGILState_GetThisThreadState();
  // While the interpreter shuts down it frees the thread states of threads that still run.
  if (thread == nullptr || interpreter_is_finalizing()) return 0;
  const Frame* const innermost = innermost_frame(thread);
  if (innermost == nullptr) return 0;
  cache.innermost = position_of(innermost);

  const StackHash seen = hash_stack(innermost, generation());
  StackCache::Entry(&set)[StackCache::kWays] = cache.entries[seen.hash % StackCache::kSets];
  for (const StackCache::Entry& entry : set) {
    if (entry.hash == seen.hash && entry.frames == seen.frames) return entry.stack;
  }
  // The death of code objects in subinterpreters is not watched; since their stacks never enter the cache, the check
  // costs the others nothing.
  if (thread->interp != PyInterpreterState_Main()) return 0;
  try {
    const std::uint32_t stack = define_stack(innermost, registry);
    if (stack != 0 && stack != kStackNotStored) {
      std::copy_backward(std::begin(set), std::end(set) - 1, std::end(set));
      set[0] = {seen.hash, seen.frames, stack};
    }
    return stack;
  } catch (...) {  // no memory: the event has no stack
    return kStackNotStored;
  }
}

std::uint64_t direct_position() noexcept {
  PyThreadState* const thread = PyGILState_GetThisThreadState();
  if (thread == nullptr || interpreter_is_finalizing()) return kNoFrame;
  const Frame* const innermost = innermost_frame(thread);
  return innermost == nullptr ? kNoFrame : position_of(innermost);
}

}  // namespace
#endif  // ALLOCTRACE_KNOWN_LAYOUT

std::uint32_t current_stack(StackCache& cache, CodeRegistry& registry) noexcept {
  switch (walk_mode.load(std::memory_order_relaxed)) {
#if ALLOCTRACE_KNOWN_LAYOUT
    case WalkMode::kDirect:
      return direct_stack(cache, registry);
#endif
    case WalkMode::kPublicApi:
      return current_stack_by_public_api(registry);
    default:
      (void)cache;
      return 0;
  }
}

std::uint64_t innermost_position() noexcept {
#if ALLOCTRACE_KNOWN_LAYOUT
  if (walk_mode.load(std::memory_order_relaxed) == WalkMode::kDirect) return direct_position();
#endif
  return 0;
}

}  // namespace alloctrace::python
