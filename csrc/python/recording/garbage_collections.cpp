#include "garbage_collections.h"

#include <Python.h>
#include <pthread.h>

#include <utility>

#include "pending_calls.h"
#include "python_reference.h"

namespace alloctrace::python {
namespace {

constexpr std::uint64_t kOldestGeneration = 2;

// Guarded by the GIL; without one, by the interpreter, which runs one collection at a time.
struct Observation {
  PyObject* callback = nullptr;
  CollectionRecorder recorder = nullptr;
  // The collection in progress. session: number of the session in which it began, 0: none.
  std::uint64_t session = 0, first_event = 0;
  pthread_t thread{};
} observation;

// Return gc.callbacks (borrowed), or nullptr. Runs no code of the program, which may have replaced the module.
PyObject* collector_callbacks() {
  PyObject* const modules = PyImport_GetModuleDict();
  PyObject* const gc = modules && PyDict_CheckExact(modules) ? PyDict_GetItemString(modules, "gc") : nullptr;
  PyObject* const callbacks =
      gc && PyModule_CheckExact(gc) ? PyDict_GetItemString(PyModule_GetDict(gc), "callbacks") : nullptr;
  return callbacks && PyList_CheckExact(callbacks) ? callbacks : nullptr;
}

std::uint64_t read_count(PyObject* info, const char* key) {
  PyObject* const value = PyDict_GetItemString(info, key);  // borrowed
  const long long count = value && PyLong_CheckExact(value) ? PyLong_AsLongLong(value) : 0;
  if (PyErr_Occurred()) PyErr_Clear();
  return count > 0 ? static_cast<std::uint64_t>(count) : 0;
}

void begin_collection(PyObject* info) {
  observation.session = 0;
  // Before `first_event` is read: what a scan frees is not garbage.
  if (read_count(info, "generation") == kOldestGeneration) scan_before_collection();
  HookScope scope;
  if (!scope) return;
  observation.session = scope.session().number;
  observation.first_event = scope.session().recorder.next_event();
  observation.thread = pthread_self();
}

void end_collection(PyObject* info) {
  const std::uint64_t session = std::exchange(observation.session, 0);
  if (session == 0 || !pthread_equal(observation.thread, pthread_self())) return;
  GarbageCollection collection{observation.first_event, read_count(info, "generation"), 0, 0};
  HookScope scope;
  if (!scope || scope.session().number != session) return;
  const bool is_young = collection.generation < kOldestGeneration;
  if (is_young && collection.first_event == scope.session().recorder.next_event()) return;
  collection.collected = read_count(info, "collected");
  collection.uncollectable = read_count(info, "uncollectable");
  observation.recorder(scope, collection);
}

PyObject* on_collection(PyObject*, PyObject* const* arguments, Py_ssize_t count) noexcept {
  if (count == 2 && PyUnicode_CheckExact(arguments[0]) && PyDict_CheckExact(arguments[1])) {
    if (PyUnicode_CompareWithASCIIString(arguments[0], "start") == 0) {
      begin_collection(arguments[1]);
    } else if (PyUnicode_CompareWithASCIIString(arguments[0], "stop") == 0) {
      end_collection(arguments[1]);
    }
  }
  Py_RETURN_NONE;
}

PyMethodDef callback_definition{
    "record_garbage_collection",
    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&on_collection)),
    METH_FASTCALL,
    "Record a garbage collection in the trace of pytorch_alloctrace.",
};

}  // namespace

void start_garbage_collections(CollectionRecorder recorder) {
  stop_garbage_collections();  // a forked child inherits its parent's
  PyObject* const callbacks = collector_callbacks();
  if (!callbacks) return;
  observation.recorder = recorder;
  observation.callback = PyCFunction_New(&callback_definition, nullptr);
  if (!observation.callback || PyList_Append(callbacks, observation.callback) != 0) PyErr_Clear();
}

void stop_garbage_collections() {
  const Reference callback(std::exchange(observation.callback, nullptr));
  observation.session = 0;
  PyObject* const callbacks = callback ? collector_callbacks() : nullptr;
  if (!callbacks) return;
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(callbacks); ++index) {
    if (PyList_GET_ITEM(callbacks, index) != callback.get()) continue;
    if (PyList_SetSlice(callbacks, index, index + 1, nullptr) != 0) PyErr_Clear();
    return;
  }
}

}  // namespace alloctrace::python
