// Lookup of module names. A hook records a module's address; the name is looked up later, with the GIL.
//
// For the main thread, a pending call (pending_calls.h) looks up names. The interpreter runs it before the next
// function begins, so the recorded calls are still active and their modules are those that the hook recorded. For other
// threads, the thread of thread_names.h looks up names; the first events of these modules contain only the class.
#pragma once

#include <Python.h>

namespace alloctrace::python {

// Called with the GIL, around a session. resolve(stacks, seen) gets the modules called on each thread that sighted an
// unnamed module, outermost first, and {address: id} of certain sightings. main_thread: threading.main_thread().ident.
void start_module_names(PyObject* resolve, unsigned long main_thread);
void stop_module_names();

// Drop the requests of other threads: in a forked child.
void forget_module_names() noexcept;

// Request a lookup, in a hook that sighted an unnamed module. Never blocks.
void request_module_names() noexcept;

// Look up the modules sighted so far (on the main thread, as the pending call would), with the GIL. Return false with
// an exception set if the exception must reach the program: from its signal handler, or from another thread.
bool look_up_module_names();
// Return whether a thread other than the main thread has requested a lookup.
bool has_module_name_requests() noexcept;

}  // namespace alloctrace::python
