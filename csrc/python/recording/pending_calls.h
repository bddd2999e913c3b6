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

// Reason for an object scan: the argument of the function that scans.
enum class ScanReason : int { kDue = 0, kCollection = 1, kOutOfMemory = 2 };

// Set the function that scans objects; nullptr for none. Needs the GIL.
void set_object_scan(PyObject* scan);

// Scan objects now, for a full garbage collection that begins. Needs the GIL.
void scan_before_collection() noexcept;

// Scan objects now, at the first out-of-memory errors of a recording, while the frames of the failed call exist. Takes
// the GIL: call without locks, from the wrapper of the allocator. Does nothing on a thread that would not take it
// anyway when the call returns: neither Python's nor, by `is_in_backward`, torch's. Another thread may hold the GIL and
// wait for it.
void scan_out_of_memory(bool is_in_backward) noexcept;

}  // namespace alloctrace::python
