#include "stack_hash.h"

#if ALLOCTRACE_KNOWN_LAYOUT
namespace alloctrace::python {
namespace {

// Hash a stack of more than LastWalk::kMaxSteps frames from the innermost frame outwards, without remembering frames.
[[gnu::cold]] StackHash hash_of_deep_stack(const Frame* frame, std::uint64_t generation, const CodeExtent& module_code,
                                           LastWalk& last) noexcept {
  std::uint64_t hash = mix(generation ^ 0xA0761D6478BD642Fu, kGoldenRatio);
  std::uint32_t frames = 0;
  for (; frame != nullptr && frames < kMaxFrames; frame = caller(frame), ++frames) {
    std::uint64_t instruction = position(frame);
    if (is_in_code(module_code, frame, instruction)) instruction ^= module_key(frame);
    hash = mix(hash ^ instruction, kGoldenRatio);
  }
  // Tell the next walk to skip the comparison. A wrong guess costs one slow walk.
  last.is_too_deep = frames > LastWalk::kMaxSteps;
  return {hash, frames};
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
    last.steps[0].hash = mix(generation ^ 0xD6E8FEB86659FD93u, kGoldenRatio);
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

}  // namespace alloctrace::python
#endif
