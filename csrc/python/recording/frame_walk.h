// Walk of the calling thread's Python stack, without the GIL.
//
// A thread's chain of frames cannot change while the thread is in an allocator's hook, so reading the chain needs no
// lock. The chain is hashed (stack_hash.h); only a stack that is not in the thread's cache goes to the shared table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../../core/format/format.h"
#include "code_registry.h"
#include "module_registry.h"

typedef struct _ts PyThreadState;

namespace alloctrace::python {

// Way in which current_stack reads stacks in this process; set by check_layout.
enum class WalkMode : std::uint8_t {
  kNone,       // no stacks: free-threaded builds
  kPublicApi,  // on threads that hold the GIL
  kDirect,     // on every thread
};
void set_walk_mode(WalkMode mode) noexcept;
// Set whether the first argument of a frame can be read, and so the module that it calls. Initially false.
void allow_modules(bool allowed) noexcept;

// Frames of a thread's last walk, outermost first, from index 1 on. They may be freed: see the rule in stack_hash.h.
struct LastWalk {
  static constexpr std::uint32_t kMaxSteps = 256;
  struct Step {
    const void* caller = nullptr;
    std::uint64_t position = 0;
    std::uint64_t hash = 0;  // of the stack that ends with this frame
  };
  struct ModuleCall {
    std::uint32_t step = 0;
    std::uint64_t key = 0;
  };
  bool is_too_deep = false;  // more than kMaxSteps frames: the next walk compares none
  std::uint32_t frames = 0;
  std::uint32_t module_count = 0;
  std::uint64_t generation = UINT64_MAX;
  Step steps[kMaxSteps + 2];            // the address of frame i is steps[i + 1].caller
  ModuleCall modules[kMaxSteps];        // frames that call a module, outermost first
  const void* added_frames[kMaxSteps];  // scratch space, too large for a small thread's stack

  // Forget all frames. Must be called before another thread uses this object.
  void clear() noexcept {
    is_too_deep = false;
    frames = module_count = 0;
  }
};

// Cache of a thread's stacks: sets of four entries, newest first, one cache line for each set. Zeros: an empty entry.
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

// Value instead of a stack id: not stored, since the definition log was full, memory ran out, or in a subinterpreter.
inline constexpr std::uint32_t kStackNotStored = UINT32_MAX;
// Flag of a truncated stack's id: the table is full, and the id names only the outer frames, which the table contains.
inline constexpr std::uint32_t kStackIsTruncated = std::uint32_t{1} << 31;

// Maximum number of frames in a stack; the outermost frames of a deeper stack are dropped.
inline constexpr std::uint32_t kMaxDepth = kMaxStackDepth;

// Compare the compiled-in frame layout with the public API (from 3.13 on also with the interpreter's own table) and
// start to watch code objects. Called at import, with the GIL; sets no exception. Return "", or a sentence with the
// difference and its consequence: as before the call, stacks are read by the public API, on threads with the GIL.
std::string check_layout();

// Read stacks through the public API from now on, as with a wrong layout.
void use_public_api() noexcept;

// Return the calling thread's stack as the id of its innermost frame in the registry's table, with kStackIsTruncated if
// the table is full; kStackNotStored if storing failed; 0 without Python state or code, or during shutdown. Needs no
// GIL (public API: see check_layout), creates no Python object, changes no reference count, and blocks only on the
// locks of registry and table. Sessions must end before the interpreter, which frees thread states that a walk may be
// reading.
std::uint32_t current_stack(StackCache& cache, CodeRegistry& registry, ModuleRegistry& modules) noexcept;

// Return whether a subinterpreter allocated since the last call.
bool met_subinterpreter() noexcept;

// Treat frames of `code` as calls of the modules in their first argument; nullptr: no frames. Called with the GIL,
// while nothing is recorded. Return false if the frame layout is wrong or that argument is missing or in a cell.
bool watch_module_calls(PyCodeObject* code) noexcept;

struct ModuleCall {
  const void* frame = nullptr;
  PyObject* module = nullptr;
};
// Return the module calls on a thread, outermost first, with borrowed references. Needs the GIL.
std::vector<ModuleCall> list_module_calls(PyThreadState* thread);

// Return a number for the innermost frame and its instruction; 0 if unknown. Not inlined, since called rarely.
[[gnu::noinline]] std::uint64_t innermost_position() noexcept;

}  // namespace alloctrace::python
