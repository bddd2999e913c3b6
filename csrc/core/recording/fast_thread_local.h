// Storage class of thread-local variables that hooks read at every event. Each access is one instruction instead of a
// function call. The loader reserves only 1 to 2 kB for such variables of all libraries: for pointers and numbers only.
#pragma once

#define ALLOCTRACE_FAST_THREAD_LOCAL __attribute__((tls_model("initial-exec"))) thread_local
