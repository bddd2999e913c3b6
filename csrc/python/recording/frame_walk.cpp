#include "frame_walk.h"

#include <algorithm>
#include <atomic>

#include "../../core/base/hash.h"
#include "cpython_layout.h"
#include "public_walk.h"
#include "python_reference.h"
#include "stack_hash.h"

namespace alloctrace::python {
namespace {

std::atomic<WalkMode> walk_mode{WalkMode::kPublicApi};
std::atomic<bool> first_argument_is_readable{false};
std::atomic<bool> subinterpreter_allocated{false};

}  // namespace

void set_walk_mode(WalkMode mode) noexcept { walk_mode.store(mode, std::memory_order_relaxed); }
void use_public_api() noexcept { set_walk_mode(WalkMode::kPublicApi); }
bool met_subinterpreter() noexcept { return subinterpreter_allocated.exchange(false, std::memory_order_relaxed); }
void allow_modules(bool allowed) noexcept { first_argument_is_readable.store(allowed, std::memory_order_relaxed); }

#if ALLOCTRACE_KNOWN_LAYOUT
namespace {

// Extent of the code whose frames are module calls. Changed only while nothing is recorded.
struct {
  std::atomic<std::uint64_t> begin{0}, length{0};
} watched_code;

CodeExtent load_module_code() noexcept {
  return {watched_code.begin.load(std::memory_order_relaxed), watched_code.length.load(std::memory_order_relaxed)};
}

// Add a stack to the table: the slow path. Frames link outwards, but the table is filled inwards, so the chain is read
// in chunks from its outer end. A buffer for the chain could overflow a small thread's stack or fail without memory.
[[gnu::noinline]] std::uint32_t define_stack(const Frame* innermost, CodeRegistry& registry, ModuleRegistry& modules) {
  struct Call {
    PyCodeObject* code;
    std::uint32_t instruction;
    const Frame* module_call;  // nullptr: not a module call
  };
  constexpr std::uint32_t kChunk = 128;
  Call calls[kChunk];
  const CodeExtent module_code = load_module_code();
  bool waits_for_name = false;

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
  const auto partial_stack = [&] { return registry.table().is_full() ? stack | kStackIsTruncated : kStackNotStored; };
  std::uint32_t remaining = for_each_visible([](std::uint32_t, PyCodeObject*, const Frame*) { return true; });
  while (remaining > 0) {
    const std::uint32_t count = std::min(remaining, kChunk);
    const std::uint32_t outer = remaining - count;
    for_each_visible([&](std::uint32_t index, PyCodeObject* code, const Frame* frame) {
      if (index >= remaining) return false;
      if (index >= outer) {
        const bool is_module_call = is_in_code(module_code, frame, position(frame)) && first_argument(frame) != nullptr;
        calls[index - outer] = {code, instruction_offset(frame, code), is_module_call ? frame : nullptr};
      }
      return true;
    });
    for (std::uint32_t i = count; i-- > 0;) {
      const std::uint32_t code = registry.code_id(calls[i].code);
      if (code == 0) return partial_stack();
      std::uint32_t module = 0;
      if (const Frame* const frame = calls[i].module_call) {
        module = modules.module_id(first_argument(frame), frame, waits_for_name);
        if (module == 0) return partial_stack();
      }
      const std::uint32_t frame = registry.table().frame_id(stack, code, calls[i].instruction, module);
      if (frame == 0) return partial_stack();
      stack = frame;
    }
    remaining = outer;
  }
  return stack;
}

// Value of innermost_position() when no Python code runs.
constexpr std::uint64_t kNoFrame = 1;

std::uint64_t position_of(const Frame* innermost) noexcept {
  return mix(reinterpret_cast<std::uintptr_t>(innermost) ^ kGoldenRatio, position(innermost)) | 2;
}

// Not inlined: inside the hook the compiler ran out of registers.
[[gnu::hot, gnu::noinline, gnu::flatten]] std::uint32_t direct_stack(StackCache& cache, CodeRegistry& registry,
                                                                     ModuleRegistry& modules) noexcept {
  PyThreadState* const thread = PyGILState_GetThisThreadState();
  // During shutdown the interpreter frees the thread states of threads that still run.
  if (thread == nullptr || interpreter_is_finalizing()) return 0;
  const Frame* const innermost = innermost_frame(thread);
  if (innermost == nullptr) return 0;
  const std::uint64_t current_generation = generation();
  const StackHash current = hash_stack(innermost, current_generation, load_module_code(), cache.last);
  check_stack_hash(current, innermost, current_generation, load_module_code(), cache.last);
  StackCache::Entry(&set)[StackCache::kWays] = cache.entries[current.hash % StackCache::kSets];
  for (const StackCache::Entry& entry : set) {
    if (entry.hash == current.hash && entry.frames == current.frames) return entry.stack;
  }
  // Code objects of subinterpreters are destroyed without a report, so their stacks never enter the table or the cache.
  if (thread->interp != PyInterpreterState_Main()) {
    subinterpreter_allocated.store(true, std::memory_order_relaxed);
    return kStackNotStored;
  }
  try {
    const std::uint32_t stack = define_stack(innermost, registry, modules);
    if (stack != 0 && stack != kStackNotStored) {
      std::copy_backward(std::begin(set), std::end(set) - 1, std::end(set));
      set[0] = {current.hash, current.frames, stack};
    }
    return stack;
  } catch (...) {  // out of memory: the event has no stack
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

std::uint32_t current_stack(StackCache& cache, CodeRegistry& registry, ModuleRegistry& modules) noexcept {
  switch (walk_mode.load(std::memory_order_relaxed)) {
#if ALLOCTRACE_KNOWN_LAYOUT
    case WalkMode::kDirect:
      return direct_stack(cache, registry, modules);
#endif
    case WalkMode::kPublicApi:
      return current_stack_by_public_api(registry);
    default:
      (void)cache;
      (void)modules;
      return 0;
  }
}

bool watch_module_calls(PyCodeObject* code) noexcept {
#if ALLOCTRACE_KNOWN_LAYOUT
  watched_code.length.store(0, std::memory_order_relaxed);
  watched_code.begin.store(0, std::memory_order_relaxed);
  if (code == nullptr) return true;
  if (walk_mode.load(std::memory_order_relaxed) != WalkMode::kDirect ||
      !first_argument_is_readable.load(std::memory_order_relaxed) || code->co_argcount < 1) {
    return false;
  }
  const Reference cells(PyObject_GetAttrString(reinterpret_cast<PyObject*>(code), "co_cellvars"));
  const Reference names(PyObject_GetAttrString(reinterpret_cast<PyObject*>(code), "co_varnames"));
  const int in_cell = cells && names && PyTuple_Check(names.get()) && PyTuple_GET_SIZE(names.get()) > 0
                          ? PySequence_Contains(cells.get(), PyTuple_GET_ITEM(names.get(), 0))
                          : 1;
  PyErr_Clear();
  if (in_cell != 0) return false;
  // Never released: frames of a later code object at the same address would be recorded as module calls.
  Py_INCREF(code);
  const CodeExtent extent = extent_of(code);
  watched_code.begin.store(extent.begin, std::memory_order_relaxed);
  watched_code.length.store(extent.length, std::memory_order_relaxed);
  return true;
#else
  return code == nullptr;
#endif
}

std::vector<ModuleCall> list_module_calls(PyThreadState* thread) {
  std::vector<ModuleCall> calls;
#if ALLOCTRACE_KNOWN_LAYOUT
  const CodeExtent code = load_module_code();
  std::uint32_t frames = 0;
  for (const Frame* frame = code.length ? innermost_frame(thread) : nullptr; frame && frames < kMaxFrames;
       frame = caller(frame), ++frames) {
    if (is_in_code(code, frame, position(frame)) && visible_code(frame) != nullptr &&
        first_argument(frame) != nullptr) {
      calls.push_back({frame, first_argument(frame)});
    }
  }
  std::reverse(calls.begin(), calls.end());
#else
  (void)thread;
#endif
  return calls;
}

std::uint64_t innermost_position() noexcept {
#if ALLOCTRACE_KNOWN_LAYOUT
  if (walk_mode.load(std::memory_order_relaxed) == WalkMode::kDirect) return direct_position();
#endif
  return 0;
}

}  // namespace alloctrace::python
