#include "thread_names.h"

#include <Python.h>
#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
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

struct NameDesk {
  std::mutex mutex;  // a leaf
  std::vector<Request> requests;
  std::atomic<bool> stopping{false};
  std::thread asker;
  WakeSignal wake;
};
// Never destroyed: hooks ask while the process goes down, and a thread object that is destroyed while its thread runs
// aborts the program (a C library that calls exit() while a session is on).
NameDesk* const only_desk = std::make_unique<NameDesk>().release();
NameDesk& desk() { return *only_desk; }

// Straight from the dictionary behind threading.enumerate(): that function takes a lock of the threading module, which
// a thread that we interrupted may hold.
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

std::vector<Request> take_requests() {
  const std::lock_guard<std::mutex> guard(desk().mutex);
  return std::exchange(desk().requests, {});
}

using Names = std::vector<std::pair<Request, std::string>>;

// Neither this nor store() throws: without memory these threads stay without their Python names.
Names look_up(const std::vector<Request>& asked) noexcept {
  Names names;
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* threading = modules ? PyDict_GetItemString(modules, "threading") : nullptr;
  PyObject* active = threading ? PyObject_GetAttrString(threading, "_active") : nullptr;
  if (active && PyDict_Check(active)) {
    try {
      for (const Request& request : asked) names.emplace_back(request, name_of(active, request.identifier));
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
    // Asked for in an earlier session, the number means another thread now.
    if (name.empty() || request.session != scope.session().number) continue;
    try {
      scope.session().recorder.name_thread(request.thread, name);
    } catch (const std::bad_alloc&) {
    }
  }
}

// What Python knows this thread by is made once, when the recording starts: to make it later, when there is no memory,
// would end the program.
void ask_until_stopped() {
  const PyGILState_STATE outside = PyGILState_Ensure();
  PyThreadState* state = PyEval_SaveThread();
  while (!desk().stopping.load(std::memory_order_acquire)) {
    const std::vector<Request> asked = take_requests();
    if (asked.empty() && !module_names_are_wanted()) {
      desk().wake.wait_ms(1000);
      continue;
    }
    PyEval_RestoreThread(state);
    const Names names = look_up(asked);
    if (!find_module_names()) PyErr_Clear();
    state = PyEval_SaveThread();
    store(names);  // may wait for the writer: not while holding the GIL
  }
  PyEval_RestoreThread(state);
  PyGILState_Release(outside);
}

}  // namespace

void ask_thread_name(std::uint64_t session, std::uint32_t thread) noexcept {
  if (!PyGILState_GetThisThreadState()) return;
  try {
    const std::lock_guard<std::mutex> guard(desk().mutex);
    desk().requests.push_back({session, thread, static_cast<unsigned long>(pthread_self())});
  } catch (...) {
    return;  // a thread's Python name is not worth more effort
  }
  desk().wake.post();
}

void wake_thread_names() noexcept { desk().wake.post(); }

void start_thread_names() {
  desk().stopping.store(false, std::memory_order_release);
  desk().asker = start_thread(ask_until_stopped);
}

void stop_thread_names() {
  find_thread_names();
  desk().stopping.store(true, std::memory_order_release);
  desk().wake.post();
  Py_BEGIN_ALLOW_THREADS  // it may be waiting for the GIL
      if (desk().asker.joinable()) desk()
          .asker.join();
  Py_END_ALLOW_THREADS take_requests();
}

void find_thread_names() {
  const Names names = look_up(take_requests());
  Py_BEGIN_ALLOW_THREADS store(names);
  Py_END_ALLOW_THREADS
}

// The old one is leaked: it may be locked, half changed, and says that its thread runs.
void forget_thread_names_in_child() noexcept { new (&desk()) NameDesk(); }

}  // namespace alloctrace::python
