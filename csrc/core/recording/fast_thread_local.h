// Thread-local variables that hooks read at every event. By default a library that is loaded at run time calls a
// function for each access; this model makes it one instruction. Its price is space in a reserve that the loader keeps
// for such libraries (well over a kilobyte): for pointers and numbers only.
#pragma once

#define ALLOCTRACE_FAST_THREAD_LOCAL __attribute__((tls_model("initial-exec"))) thread_local
