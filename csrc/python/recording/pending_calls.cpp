#include "pending_calls.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "cpython_layout.h"
#include "module_names.h"
#include "python_reference.h"

namespace alloctrace::python {
namespace {

std::atomic<unsigned> requested{0};  // bits of PendingWork
std::atomic<bool> is_posted{false};  // from Py_AddPendingCall until the call has done its work
PyObject* object_scan = nullptr;     // guarded by the GIL

constexpr int kOutOfMemoryScans = 2;  // in a recording
std::atomic<int> out_of_memory_scans_left{0};

// Exception of a signal handler that ran in a scan outside of a pending call. Guarded by the GIL.
struct DeferredError {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
} deferred_error;

int run_requested_work(void*);

// Post the call if there is work. If the interpreter's queue is full, the next request posts it.
void post_if_requested() noexcept {
  if (requested.load() == 0 || is_posted.exchange(true)) return;
  if (Py_AddPendingCall(run_requested_work, nullptr) != 0) is_posted.store(false);
}

// Scan objects. Return false with an exception set if it must reach the program: from its signal handler or a thread.
bool scan_objects(ScanReason reason) {
  const Reference scan(Py_XNewRef(object_scan));
  if (!scan || Reference(PyObject_CallFunction(scan.get(), "i", static_cast<int>(reason)))) return true;
  // Raised by the call itself, before the function could catch it.
  if (!PyErr_ExceptionMatches(PyExc_MemoryError) && !PyErr_ExceptionMatches(PyExc_RecursionError)) return false;
  PyErr_Clear();
  return true;
}

// Scan where an exception cannot reach the program: a pending call raises it.
void scan_deferring_errors(ScanReason reason) {
  DeferredError before, error;
  PyErr_Fetch(&before.type, &before.value, &before.traceback);
  {
    const SuspendedTracing untraced;
    if (!scan_objects(reason)) PyErr_Fetch(&error.type, &error.value, &error.traceback);
  }
  if (error.type != nullptr && syscall(SYS_gettid) != getpid()) {
    // Signal handlers run on the main thread only: another thread set this exception for this one.
    PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), error.type);
  } else if (error.type != nullptr) {
    std::swap(error, deferred_error);
    request_pending_work(PendingWork::kObjectScan);
  }
  for (PyObject* const object : {error.type, error.value, error.traceback}) Py_XDECREF(object);  // an earlier error
  PyErr_Restore(before.type, before.value, before.traceback);
}

bool raise_deferred_error() {
  if (deferred_error.type == nullptr) return false;
  const DeferredError error = std::exchange(deferred_error, {});
  PyErr_Restore(error.type, error.value, error.traceback);
  return true;
}

// Return whether no scan can run on this thread: at the end of Python, and in a subinterpreter.
bool is_outside_main_interpreter() {
  if (!Py_IsInitialized() || interpreter_is_finalizing()) return true;
  PyThreadState* const thread = PyGILState_GetThisThreadState();
  return thread != nullptr && thread->interp != PyInterpreterState_Main();
}

int run_requested_work(void*) {
  const unsigned work = requested.exchange(0);
  const auto includes = [work](PendingWork kind) { return (work & static_cast<unsigned>(kind)) != 0; };
  bool succeeded = true;
  {
    const SuspendedTracing untraced;
    if (includes(PendingWork::kModuleNames)) succeeded = look_up_module_names();
    if (succeeded && includes(PendingWork::kObjectScan)) {
      succeeded = !raise_deferred_error() && scan_objects(ScanReason::kDue);
      requested.fetch_and(~static_cast<unsigned>(PendingWork::kObjectScan));  // the scan covers requests made during it
    }
    if (deferred_error.type != nullptr) requested.fetch_or(static_cast<unsigned>(PendingWork::kObjectScan));
  }
  is_posted.store(false);
  post_if_requested();
  return succeeded ? 0 : -1;
}

}  // namespace

void request_pending_work(PendingWork work) noexcept {
  requested.fetch_or(static_cast<unsigned>(work));
  post_if_requested();
}

void forget_pending_work() noexcept {
  requested.store(0);
  is_posted.store(false);
  deferred_error = {};  // leaked: of the parent
}

void scan_before_collection() noexcept { scan_deferring_errors(ScanReason::kCollection); }

void scan_out_of_memory(bool is_in_backward) noexcept {
  if (is_outside_main_interpreter() || (PyGILState_GetThisThreadState() == nullptr && !is_in_backward)) return;
  if (out_of_memory_scans_left.load() <= 0 || out_of_memory_scans_left.fetch_sub(1) <= 0) return;
  const PyGILState_STATE outside = PyGILState_Ensure();
  scan_deferring_errors(ScanReason::kOutOfMemory);
  PyGILState_Release(outside);
}

void set_object_scan(PyObject* scan) {
  out_of_memory_scans_left.store(scan != nullptr ? kOutOfMemoryScans : 0);
  Py_XINCREF(scan);
  Py_XDECREF(std::exchange(object_scan, scan));
}

}  // namespace alloctrace::python
