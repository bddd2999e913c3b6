// Names of threads as Python's threading module has them, found without ever taking the GIL in a hook.
#pragma once

#include <cstdint>

namespace alloctrace::python {

// In a hook, on the thread in question: asks the interpreter to look the name up as soon as it comes by.
void ask_thread_name(std::uint32_t thread) noexcept;

// With the GIL, outside of hooks: looks up all names that were asked for and not yet found.
void find_thread_names();

// Around fork(): the child must not inherit the list's lock locked.
void lock_thread_names();
void unlock_thread_names();

// When a session ends: what was asked for it is void.
void forget_thread_names();

}  // namespace alloctrace::python
