#define PY_SSIZE_T_CLEAN
#include "thread_names.h"

#include <Python.h>
#include <pthread.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "session.h"

namespace alloctrace::python {
namespace {

struct Request {
  std::uint32_t thread;
  unsigned long identifier;  // threading.get_ident() of that thread
};

std::mutex mutex;  // a leaf
std::vector<Request> requests;

// Straight from the dictionary behind threading.enumerate(): that function takes a lock of the threading module, which the main
// thread, interrupted for a pending call, may hold itself.
std::string name_of(PyObject* active_threads, unsigned long identifier) {
  std::string name;
  PyObject* key = PyLong_FromUnsignedLong(identifier);
  PyObject* thread = key ? PyDict_GetItemWithError(active_threads, key) : nullptr;  // borrowed
  PyObject* text = thread ? PyObject_GetAttrString(thread, "_name") : nullptr;
  const char* bytes = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : nullptr;
  if (bytes) name = bytes;
  Py_XDECREF(text);
  Py_XDECREF(key);
  return name;
}

int pending_call(void*) {
  find_thread_names();
  return 0;
}

}  // namespace

void ask_thread_name(std::uint32_t thread) noexcept {
  if (!PyGILState_GetThisThreadState()) return;
  try {
    const std::lock_guard<std::mutex> guard(mutex);
    requests.push_back({thread, static_cast<unsigned long>(pthread_self())});
    if (requests.size() > 1) return;
  } catch (...) {
    return;  // a thread without its Python name is no loss worth more
  }
  // Runs on the main thread between two of its instructions. If the queue is full, stop() still looks the names up.
  Py_AddPendingCall(pending_call, nullptr);
}

void find_thread_names() {
  std::vector<Request> asked;
  {
    const std::lock_guard<std::mutex> guard(mutex);
    asked.swap(requests);
  }
  if (asked.empty()) return;
  PyObject *type, *value, *traceback;  // an exception that is on its way is none of our business, and must arrive unchanged
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* threading = modules ? PyDict_GetItemString(modules, "threading") : nullptr;
  PyObject* active = threading ? PyObject_GetAttrString(threading, "_active") : nullptr;
  std::vector<std::pair<std::uint32_t, std::string>> names;
  if (active && PyDict_Check(active)) {
    for (const Request& request : asked) names.emplace_back(request.thread, name_of(active, request.identifier));
  }
  Py_XDECREF(active);
  PyErr_Clear();
  PyErr_Restore(type, value, traceback);

  HookScope scope;
  if (!scope) return;
  for (const auto& [thread, name] : names) {
    if (!name.empty()) scope.session().recorder.name_thread(thread, name);
  }
}

void lock_thread_names() { mutex.lock(); }
void unlock_thread_names() { mutex.unlock(); }

void forget_thread_names() {
  const std::lock_guard<std::mutex> guard(mutex);
  requests.clear();
}

}  // namespace alloctrace::python
