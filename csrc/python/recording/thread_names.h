// Lookup of thread names in Python's threading module, by a thread of our own: a hook must never take the GIL, and the
// main thread may be blocked in join() for the whole run.
//
// Contract of the list of requests, between hooks and the lookup thread:
// - A request is added completely or, without memory, not at all: the thread then has no name. Its mutex is a leaf,
//   held only to add a request or to take all of them; while it is held, no thread waits for the GIL or the trace.
// - The list has no limit: there is one request per registered thread of Python.
// - Each request is consumed once, by the lookup thread or by look_up_thread_names(). It is discarded if the thread has
//   left threading._active by then, or if the session is another one.
// - stop_thread_names() consumes all requests made before it; later ones are discarded.
#pragma once

#include <cstdint>

namespace alloctrace::python {

// Request the calling thread's name for a session, in a hook.
void request_thread_name(std::uint64_t session, std::uint32_t thread) noexcept;

// Wake the lookup thread, which also looks up module names, in a hook. Never blocks.
void wake_name_thread() noexcept;

// Called with the GIL, around a session. stop_thread_names() looks up what is requested and waits without the GIL.
void start_thread_names();
void stop_thread_names();

// Look up the requested names now, with the GIL.
void look_up_thread_names();

// Reset in a forked child, which has no lookup thread and may have inherited a locked mutex.
void forget_thread_names_in_child() noexcept;

}  // namespace alloctrace::python
