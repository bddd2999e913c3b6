#include "pending_calls.h"

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

int run_requested_work(void*);

// Post the call if there is work. If the interpreter's queue is full, the next request posts it.
void post_if_requested() noexcept {
  if (requested.load() == 0 || is_posted.exchange(true)) return;
  if (Py_AddPendingCall(run_requested_work, nullptr) != 0) is_posted.store(false);
}

// Scan objects. Return false with an exception set if it must reach the program: from its signal handler or a thread.
bool scan_objects() {
  const Reference scan(Py_XNewRef(object_scan));
  if (!scan || Reference(PyObject_CallNoArgs(scan.get()))) return true;
  // Raised by the call itself, before the function could catch it.
  if (!PyErr_ExceptionMatches(PyExc_MemoryError) && !PyErr_ExceptionMatches(PyExc_RecursionError)) return false;
  PyErr_Clear();
  return true;
}

int run_requested_work(void*) {
  const unsigned work = requested.exchange(0);
  const auto includes = [work](PendingWork kind) { return (work & static_cast<unsigned>(kind)) != 0; };
  bool succeeded = true;
  {
    const SuspendedTracing untraced;
    if (includes(PendingWork::kModuleNames)) succeeded = look_up_module_names();
    if (succeeded && includes(PendingWork::kObjectScan)) {
      succeeded = scan_objects();
      requested.fetch_and(~static_cast<unsigned>(PendingWork::kObjectScan));  // the scan covers requests made during it
    }
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
}

void set_object_scan(PyObject* scan) {
  Py_XINCREF(scan);
  Py_XDECREF(std::exchange(object_scan, scan));
}

}  // namespace alloctrace::python
