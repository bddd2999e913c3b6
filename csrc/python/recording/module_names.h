// Names of modules: what a hook met by address is looked up in the program's own objects, with the GIL.
//
// Of the main thread's modules that happens in a pending call (pending_calls.h), which the interpreter runs before the
// next function begins: the calls that the hook saw still run then, so whatever they call is what the hook saw. Those
// of other threads are looked up by the thread that also asks for the names of threads; their first events keep nothing
// but the class.
#pragma once

#include <Python.h>

namespace alloctrace::python {

// Around a session, with the GIL. resolve(stacks, seen): for each thread that met a module without a name its modules
// that are being called, outermost first, and {address: id} of those that are known to be the ones that were met.
// main_thread: threading.main_thread().ident.
void start_module_names(PyObject* resolve, unsigned long main_thread);
void stop_module_names();

// In a forked child: nobody looks up what was met before.
void forget_module_names() noexcept;

// In a hook: a module was met. Never blocks.
void ask_module_names() noexcept;

// With the GIL: look up what was met by now; on the main thread, what the pending call would look up. Return false with
// an exception set if one must reach the program: from its signal handler, or from another thread.
bool find_module_names();
// Whether a thread other than the main one has met a module.
bool module_names_are_wanted() noexcept;

}  // namespace alloctrace::python
