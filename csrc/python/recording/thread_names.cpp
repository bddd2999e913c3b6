#include "thread_names.h"

#include <Python.h>
#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../core/base/thread.h"
#include "../../core/recording/writer.h"
#include "module_names.h"
#include "session.h"

namespace alloctrace::python {
namespace {

struct Request {
  std::uint64_t session;
  std::uint32_t thread;
  unsigned long identifier;  // threading.get_ident() of that thread
};

struct NameLookup {
  std::mutex mutex;  // a leaf
  std::vector<Request> requests;
  std::atomic<bool> stopping{false};
  std::binary_semaphore has_state{0};  // released when the thread has its Python state, or no memory for it
  std::thread thread;
  WakeSignal wake;
};
// Never destroyed: hooks add requests during exit(), and destroying a running thread's std::thread aborts the program.
NameLookup* const leaked_lookup = std::make_unique<NameLookup>().release();
NameLookup& lookup() { return *leaked_lookup; }

// Return a thread's name in threading._active, or "". threading.enumerate() locks what an interrupted thread may hold.
std::string name_of(PyObject* active_threads, unsigned long identifier) {
  std::string name;
  PyObject* key = PyLong_FromUnsignedLong(identifier);
  PyObject* thread = key ? PyDict_GetItemWithError(active_threads, key) : nullptr;  // borrowed
  PyObject* text = thread ? PyObject_GetAttrString(thread, "_name") : nullptr;
  const char* bytes = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : nullptr;
  if (bytes) name = bytes;
  Py_XDECREF(text);
  Py_XDECREF(key);
  PyErr_Clear();
  return name;
}

std::vector<Request> consume_requests() {
  const std::lock_guard<std::mutex> guard(lookup().mutex);
  return std::exchange(lookup().requests, {});
}

using Names = std::vector<std::pair<Request, std::string>>;

// Return the requested names. Neither read_names() nor store() throws: without memory the threads stay unnamed.
Names read_names(const std::vector<Request>& requests) noexcept {
  Names names;
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* threading = modules ? PyDict_GetItemString(modules, "threading") : nullptr;
  PyObject* active = threading ? PyObject_GetAttrString(threading, "_active") : nullptr;
  if (active && PyDict_Check(active)) {
    try {
      for (const Request& request : requests) names.emplace_back(request, name_of(active, request.identifier));
    } catch (const std::bad_alloc&) {
    }
  }
  Py_XDECREF(active);
  PyErr_Clear();
  return names;
}

void store(const Names& names) noexcept {
  HookScope scope;
  if (!scope) return;
  for (const auto& [request, name] : names) {
    // In another session the same id means another thread.
    if (name.empty() || request.session != scope.session().number) continue;
    try {
      scope.session().recorder.name_thread(request.thread, name);
    } catch (const std::bad_alloc&) {
    }
  }
}

// Look up names until stopped, with one Python state: creating a state later, without memory, would abort the program.
void look_up_until_stopped() {
  PyThreadState* state = PyThreadState_New(PyInterpreterState_Main());
  lookup().has_state.release();
  if (!state) return;  // out of memory: threads stay unnamed
  while (!lookup().stopping.load(std::memory_order_acquire)) {
    const std::vector<Request> requests = consume_requests();
    if (requests.empty() && !has_module_name_requests()) {
      lookup().wake.wait_ms(1000);
      continue;
    }
    PyEval_RestoreThread(state);
    const Names names = read_names(requests);
    if (!look_up_module_names()) PyErr_Clear();
    state = PyEval_SaveThread();
    store(names);  // without the GIL: may wait for the writer
  }
  PyEval_RestoreThread(state);
  PyThreadState_Clear(state);
  PyThreadState_DeleteCurrent();
}

}  // namespace

void request_thread_name(std::uint64_t session, std::uint32_t thread) noexcept {
  if (!PyGILState_GetThisThreadState()) return;
  try {
    const std::lock_guard<std::mutex> guard(lookup().mutex);
    lookup().requests.push_back({session, thread, static_cast<unsigned long>(pthread_self())});
  } catch (...) {
    return;  // out of memory: the thread stays unnamed
  }
  lookup().wake.post();
}

void wake_name_thread() noexcept { lookup().wake.post(); }

void start_thread_names() {
  lookup().stopping.store(false, std::memory_order_release);
  lookup().thread = start_thread(look_up_until_stopped);
  // Wait with the GIL. The new thread takes CPython's lock of thread states: a fork() of another Python thread at that
  // moment, which needs the GIL, would leave the lock taken in the child, and os.fork() would never return there.
  lookup().has_state.acquire();
}

void stop_thread_names() {
  look_up_thread_names();
  lookup().stopping.store(true, std::memory_order_release);
  lookup().wake.post();
  Py_BEGIN_ALLOW_THREADS  // the joined thread may wait for the GIL
      if (lookup().thread.joinable()) lookup()
          .thread.join();
  Py_END_ALLOW_THREADS consume_requests();
}

void look_up_thread_names() {
  const Names names = read_names(consume_requests());
  Py_BEGIN_ALLOW_THREADS store(names);
  Py_END_ALLOW_THREADS
}

// Leaks the parent's object: its mutex may be locked, its list half changed, and its std::thread counts as running.
void forget_thread_names_in_child() noexcept { new (&lookup()) NameLookup(); }

}  // namespace alloctrace::python
