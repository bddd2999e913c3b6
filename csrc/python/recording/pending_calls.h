// Work of the recorder on the main thread, between two instructions of the program: module names and object scans.
//
// In Python 3.11 a program hangs if a pending call is posted while Python code that runs in a pending call is traced or
// profiled: the evaluation loop repeats the first instruction of a function for as long as a call is queued, and the
// queue is not emptied from inside a pending call. So all work shares one call, which is posted only if it is neither
// queued nor running, and which runs untraced: debuggers, profilers and coverage tools do not record it, nor a signal
// handler of the program that runs during it.
#pragma once

#include <Python.h>

namespace alloctrace::python {

enum class PendingWork : unsigned { kModuleNames = 1, kObjectScan = 2 };

// Request work. Returns at once; may be called in a hook, on any thread, with or without the GIL.
void request_pending_work(PendingWork work) noexcept;

// Drop all requests: in a forked child, whose queue may have lost the call.
void forget_pending_work() noexcept;

// Set the function that scans objects; nullptr for none. Needs the GIL.
void set_object_scan(PyObject* scan);

}  // namespace alloctrace::python
