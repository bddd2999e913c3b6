// The Python stack of the calling thread, without the GIL.
//
// A thread's own chain of frames cannot change while the thread is in an allocator's hook, so it can be read without
// any lock. The chain is reduced to a 64-bit hash (stack_hash.h); only a stack that its thread has not seen before goes
// to the shared table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../../core/format/format.h"
#include "code_registry.h"
#include "module_registry.h"

typedef struct _ts PyThreadState;

namespace alloctrace::python {

// Frames of a thread's last walk, outermost first, from index 1 on. Only stack_hash.h reads a remembered frame, by the
// rule that stands there.
struct LastWalk {
  static constexpr std::uint32_t kMost = 256;
  struct Step {
    const void* caller = nullptr;
    std::uint64_t position = 0;
    std::uint64_t hash = 0;  // of the stack that ends with this frame
  };
  struct ModuleCall {
    std::uint32_t step = 0;
    std::uint64_t key = 0;
  };
  bool is_deeper = false;  // than that: nothing of it is kept
  std::uint32_t frames = 0;
  std::uint32_t module_calls = 0;
  std::uint64_t generation = UINT64_MAX;
  Step steps[kMost + 2];      // each frame is the caller in the step after its own
  ModuleCall modules[kMost];  // the frames that call a module, as the steps
  const void* added[kMost];   // for the walk's own use: a small thread's stack has no room for it

  // Must be called before another thread uses the walk.
  void clear() noexcept {
    is_deeper = false;
    frames = module_calls = 0;
  }
};

// Stacks that one thread has seen: sets of four entries, each set in one cache line, newest first. All zero is empty.
// The hash includes the generation, so entries of older generations never match and need not be cleared.
struct alignas(64) StackCache {
  struct Entry {
    std::uint64_t hash;
    std::uint32_t frames;
    std::uint32_t stack;
  };
  static constexpr std::size_t kWays = 4;
  static constexpr std::size_t kSets = 1024;
  LastWalk last{};
  alignas(64) Entry entries[kSets][kWays];
};

// Not a stack id: the stack could not be stored, because the table had no room for it or memory ran out.
inline constexpr std::uint32_t kStackNotStored = UINT32_MAX;
// With this bit it is the id of the outer frames alone, up to the innermost one that is in the table, which is full.
inline constexpr std::uint32_t kStackIsCut = std::uint32_t{1} << 31;

// Deeper stacks are cut off at the outer end: their innermost frames stand under the root.
inline constexpr std::uint32_t kMaxDepth = kMaxStackDepth;

// Called at import, with the GIL: compares the compiled-in layout of frames with the public API (from 3.13 on also with
// what the interpreter reports about itself), and begins to watch code objects. Returns an empty string when everything
// fits, else a sentence that says what does not, and what follows from it. Until it has been called, and where the
// layout does not fit, only the public API is used, on threads that hold the GIL. Raises nothing.
std::string check_layout();

// As if the layout did not fit.
void use_public_api() noexcept;

// Stack of the calling thread, as the id of its innermost frame in the registry's table. 0 when the thread has no
// Python state or runs no Python code, and when the interpreter is shutting down; kStackNotStored when it could not be
// stored, and in subinterpreters; with kStackIsCut when a part of it could not be. Needs no GIL, makes no Python
// object, touches no reference count, and blocks on nothing but the locks of registry and table. (With the public API:
// see check_layout.) Sessions must end before the interpreter does: a walk that is under way on another thread when the
// interpreter frees that thread's state cannot be stopped from here.
std::uint32_t current_stack(StackCache& cache, CodeRegistry& registry, ModuleRegistry& modules) noexcept;

// Whether a subinterpreter allocated since this was last asked.
bool met_subinterpreter() noexcept;

// From now on the frames of this code object (see first_argument in cpython_layout.h) are calls of modules: stacks tell
// the instances apart. nullptr: of none. With the GIL, while no session is on. False where that cannot be done: another
// layout of frames, or code whose first argument is in a cell or missing.
bool watch_module_calls(PyCodeObject* code) noexcept;

struct ModuleCall {
  const void* frame = nullptr;
  PyObject* module = nullptr;
};
// The calls of modules on a thread, outermost first. With the GIL; the references are borrowed.
std::vector<ModuleCall> module_calls(PyThreadState* thread);

// The innermost frame and its instruction, as one number, which changes as the thread runs on. 0 when it is unknown.
// Out of line: only a program that used CUDA before its recording asks.
[[gnu::noinline]] std::uint64_t innermost_position() noexcept;

}  // namespace alloctrace::python
