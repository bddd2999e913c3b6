#include "stack_hash.h"

#include <cinttypes>

#include "../../core/base/check.h"

#if ALLOCTRACE_KNOWN_LAYOUT
namespace alloctrace::python {
namespace {

// Hash a stack from the innermost frame outwards.
[[gnu::cold]] StackHash hash_outwards(const Frame* frame, std::uint64_t generation,
                                      const CodeExtent& module_code) noexcept {
  std::uint64_t hash = mix(generation ^ 0xA0761D6478BD642Fu, kGoldenRatio);
  std::uint32_t frames = 0;
  for (; frame != nullptr && frames < kMaxFrames; frame = caller(frame), ++frames) {
    std::uint64_t instruction = position(frame);
    if (is_in_code(module_code, frame, instruction)) instruction ^= module_key(frame);
    hash = mix(hash ^ instruction, kGoldenRatio);
  }
  return {hash, frames};
}

// Hash a stack of more than LastWalk::kMaxSteps frames without remembering frames.
[[gnu::cold]] StackHash hash_of_deep_stack(const Frame* frame, std::uint64_t generation, const CodeExtent& module_code,
                                           LastWalk& last) noexcept {
  const StackHash hash = hash_outwards(frame, generation, module_code);
  // Tell the next walk to skip the comparison. A wrong guess costs one slow walk.
  last.is_too_deep = hash.frames > LastWalk::kMaxSteps;
  return hash;
}

// Return the hash before the outermost frame.
std::uint64_t begin_hash(std::uint64_t generation) noexcept {
  return mix(generation ^ 0xD6E8FEB86659FD93u, kGoldenRatio);
}

// Return the step of `frame` in the last walk or 0. Ends early: from 3.11 on inner frames mostly have higher addresses.
std::uint32_t find_step(const LastWalk& last, const Frame* frame) noexcept {
  std::uint32_t step = last.frames;
  while (step != 0 && frame_of(last, step) > frame) --step;
  return step != 0 && frame_of(last, step) == frame ? step : 0;
}

constexpr std::uint32_t kCallersChanged = UINT32_MAX;

// Return how many of the last walk's first `frames` frames precede the first changed one, or kCallersChanged.
[[gnu::cold]] std::uint32_t compare_frames(const LastWalk& last, std::uint32_t frames) noexcept {
  std::uint32_t unchanged = frames;
  std::uint32_t module = last.module_count;
  while (module != 0 && last.modules[module - 1].step > frames) --module;
  for (std::uint32_t step = frames; step != 0; --step) {
    const Frame* const frame = frame_of(last, step);
    bool is_same = position(frame) == last.steps[step].position;
    if (module != 0 && last.modules[module - 1].step == step) {
      --module;
      is_same = is_same && module_key(frame) == last.modules[module].key;
    }
    if (!is_same) unchanged = step - 1;
    if (caller(frame) != last.steps[step].caller) return kCallersChanged;
  }
  return unchanged;
}

// Return whether a frame with unchanged position calls the same module as in the last walk, or none.
bool calls_same_module(const LastWalk& last, std::uint32_t step, const Frame* frame) noexcept {
  for (std::uint32_t i = last.module_count; i != 0 && last.modules[i - 1].step >= step; --i) {
    if (last.modules[i - 1].step == step) return module_key(frame) == last.modules[i - 1].key;
  }
  return true;
}

// Return the same as compare_frames, faster in the usual case: inner frames have moved, outer frames have not.
std::uint32_t count_unchanged(const LastWalk& last, std::uint32_t frames) noexcept {
  for (std::uint32_t step = frames; step != 0; --step) {
    const Frame* const frame = frame_of(last, step);
    if (position(frame) == last.steps[step].position) {
      return calls_same_module(last, step, frame) && are_unchanged_below(last, step, frame)
                 ? step
                 : compare_frames(last, step);
    }
    if (caller(frame) != last.steps[step].caller) return kCallersChanged;
  }
  return 0;
}

}  // namespace

StackHash hash_moved_stack(const Frame* innermost, std::uint64_t generation, const CodeExtent& module_code,
                           LastWalk& last) noexcept {
  if (last.is_too_deep) return hash_of_deep_stack(innermost, generation, module_code, last);
  if (last.generation != generation) {
    last.generation = generation;
    last.frames = last.module_count = 0;
    last.steps[0].hash = begin_hash(generation);
  }

  // Collect the frames that are not in the last walk, innermost first.
  std::uint32_t added = 0;
  std::uint32_t common_frames = 0;
  for (const Frame* frame = innermost; frame != nullptr; frame = caller(frame)) {
    common_frames = find_step(last, frame);
    if (common_frames != 0) break;
    if (added == LastWalk::kMaxSteps) return hash_of_deep_stack(innermost, generation, module_code, last);
    last.added_frames[added++] = frame;
  }
  const std::uint32_t unchanged = count_unchanged(last, common_frames);
  if (unchanged == kCallersChanged) {
    last.frames = last.module_count = 0;
    return hash_moved_stack(innermost, generation, module_code, last);
  }

  // Drop the remembered hashes of the changed frames.
  last.frames = unchanged;
  while (last.module_count != 0 && last.modules[last.module_count - 1].step > unchanged) --last.module_count;
  const std::uint32_t frames = common_frames + added;
  if (frames > LastWalk::kMaxSteps) return hash_of_deep_stack(innermost, generation, module_code, last);
  std::uint64_t hash = last.steps[unchanged].hash;
  for (std::uint32_t step = unchanged + 1; step <= frames; ++step) {
    if (step > common_frames) last.steps[step + 1].caller = last.added_frames[frames - step];
    const Frame* const frame = frame_of(last, step);
    std::uint64_t instruction = position(frame);
    last.steps[step].position = instruction;
    if (is_in_code(module_code, frame, instruction)) {
      const std::uint64_t key = module_key(frame);
      last.modules[last.module_count++] = {step, key};
      instruction ^= key;
    }
    last.steps[step].hash = hash = mix(hash ^ instruction, kGoldenRatio);
  }
  last.frames = frames;
  return {hash, frames};
}

#ifdef ALLOCTRACE_CHECKS
void check_stack_hash(const StackHash& hash, const Frame* innermost, std::uint64_t generation,
                      const CodeExtent& module_code, const LastWalk& last) noexcept {
  if (last.frames == 0 || last.steps[last.frames].hash != hash.hash) {  // the stack is or was too deep to remember
    const StackHash live = hash_outwards(innermost, generation, module_code);
    ALLOCTRACE_CHECK(live.hash == hash.hash && live.frames == hash.frames,
                     "frame walk: the hash is 0x%" PRIx64 " of %" PRIu32 " frames, of the live stack 0x%" PRIx64
                     " of %" PRIu32 " frames",
                     hash.hash, hash.frames, live.hash, live.frames);
    return;
  }
  ALLOCTRACE_CHECK(last.generation == generation && last.steps[0].hash == begin_hash(generation),
                   "frame walk: the remembered frames are of generation %" PRIu64 ", the live ones of %" PRIu64,
                   last.generation, generation);
  const Frame* frame = innermost;
  std::uint32_t module = last.module_count;
  for (std::uint32_t step = last.frames; step != 0; --step, frame = caller(frame)) {
    const LastWalk::Step& remembered = last.steps[step];
    ALLOCTRACE_CHECK(frame == frame_of(last, step),
                     "frame walk: remembered frame %" PRIu32 " of %" PRIu32 " is %p, the live one %p", step,
                     last.frames, static_cast<const void*>(frame_of(last, step)), static_cast<const void*>(frame));
    std::uint64_t instruction = position(frame);
    ALLOCTRACE_CHECK(instruction == remembered.position,
                     "frame walk: remembered frame %" PRIu32 " of %" PRIu32 " (%p) is at 0x%" PRIx64
                     ", the live one at 0x%" PRIx64,
                     step, last.frames, static_cast<const void*>(frame), remembered.position, instruction);
    const bool calls_module = module != 0 && last.modules[module - 1].step == step;
    const std::uint64_t remembered_key = calls_module ? last.modules[--module].key : 0;
    const std::uint64_t key = is_in_code(module_code, frame, instruction) ? module_key(frame) : 0;
    ALLOCTRACE_CHECK(remembered_key == key,
                     "frame walk: remembered frame %" PRIu32 " of %" PRIu32 " calls module 0x%" PRIx64
                     ", the live one 0x%" PRIx64,
                     step, last.frames, remembered_key, key);
    instruction ^= key;
    ALLOCTRACE_CHECK(remembered.hash == mix(last.steps[step - 1].hash ^ instruction, kGoldenRatio),
                     "frame walk: the hash of remembered frame %" PRIu32 " of %" PRIu32 " is 0x%" PRIx64
                     ", of the live one 0x%" PRIx64,
                     step, last.frames, remembered.hash, mix(last.steps[step - 1].hash ^ instruction, kGoldenRatio));
  }
  ALLOCTRACE_CHECK(frame == nullptr && last.frames == hash.frames && module == 0,
                   "frame walk: %" PRIu32 " frames are remembered, the live chain continues with %p", last.frames,
                   static_cast<const void*>(frame));
}
#endif

}  // namespace alloctrace::python
#endif
