// Names of threads as Python's threading module has them. A hook must never take the GIL, and the main thread may sit
// in join() for the whole run, so a small thread of our own asks the interpreter.
#pragma once

#include <cstdint>

namespace alloctrace::python {

// In a hook, on the thread in question: requests its name for that session. Never blocks.
void ask_thread_name(std::uint64_t session, std::uint32_t thread) noexcept;

// In a hook: the thread that asks has something else to look up, names of modules. Never blocks.
void wake_thread_names() noexcept;

// Around a session, with the GIL: starts and ends the thread that asks. Ending it releases the GIL while it waits, and
// looks up the names that were requested and not yet found.
void start_thread_names();
void stop_thread_names();

// With the GIL: looks up the requested names at once.
void find_thread_names();

// In a forked child, which has no such thread, and may have inherited the lock of the list locked: begins anew.
void forget_thread_names_in_child() noexcept;

}  // namespace alloctrace::python
