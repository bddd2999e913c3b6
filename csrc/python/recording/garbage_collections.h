// Observation of Python's garbage collector: a C function of ours in gc.callbacks, which reports each collection that
// ended. Blocks that the collecting thread freed in between were garbage of reference cycles, or belonged to objects
// that finalizers of the garbage, or other callbacks, released.
//
// - A collection of a young generation during which no event was recorded is not reported.
// - The interpreter calls the function without an exception set, with the GIL, on any thread, one collection at a time;
//   the function returns None whatever its arguments. In a forked child and after the session it does nothing else.
// - At the start of a collection of all generations, the program's objects are scanned (pending_calls.h).
// - If the program empties gc.callbacks, later collections are not reported. Collections of other interpreters, which
//   have callbacks of their own, never are.
#pragma once

#include <cstdint>

#include "session.h"

namespace alloctrace::python {

struct GarbageCollection {
  std::uint64_t first_event = 0;  // number of the next event when the collection began
  std::uint64_t generation = 0, collected = 0, uncollectable = 0;
};
using CollectionRecorder = void (*)(HookScope&, const GarbageCollection&) noexcept;

// Called with the GIL, around a session. Neither raises: without memory, collections are not observed.
void start_garbage_collections(CollectionRecorder recorder);
void stop_garbage_collections();

}  // namespace alloctrace::python
