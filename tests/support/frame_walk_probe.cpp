// The stack walker and the tables behind it as a Python module of their own, without torch and without pybind11, so
// that the tests can build them for every interpreter at hand.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>

#include "../../csrc/core/format/definitions.h"
#include "../../csrc/core/recording/definition_log.h"
#include "../../csrc/core/recording/stack_table.h"
#include "../../csrc/python/recording/code_registry.h"
#include "../../csrc/python/recording/cpython_layout.h"
#include "../../csrc/python/recording/frame_walk.h"
#include "../../csrc/python/recording/module_names.h"
#include "../../csrc/python/recording/pending_calls.h"

#if ALLOCTRACE_KNOWN_LAYOUT
// The checks of a build with ALLOCTRACE_CHECK_FRAMES. They abort: after a dead frame was read, anything may happen.
namespace alloctrace::python {
namespace {

thread_local std::unordered_set<const Frame*> live_frames;

[[noreturn]] void fail_check(const char* what) {
  std::fprintf(stderr, "frame walk: %s\n", what);
  std::abort();
}

}  // namespace

void begin_frame_check(const Frame* innermost) {
  live_frames.clear();
  for (const Frame* frame = innermost; frame != nullptr; frame = unchecked_caller(frame)) live_frames.insert(frame);
}

void check_frame_is_live(const Frame* frame) {
  if (!live_frames.contains(frame)) fail_check("a frame was read that is not live");
}

}  // namespace alloctrace::python
#endif

// The probe has no session in which modules are named.
bool alloctrace::python::look_up_module_names() { return true; }

namespace {

using alloctrace::python::current_stack;
using alloctrace::python::StackCache;

// What a recording session keeps about stacks, with a log that only the probe reads.
struct Session {
  std::unique_ptr<std::uint8_t[]> ring = std::make_unique_for_overwrite<std::uint8_t[]>(kCapacity);
  alloctrace::DefinitionLogState state{};
  alloctrace::DefinitionLog log{ring.get(), kCapacity, state, 0, [] {}};
  alloctrace::StackTable table{log};
  alloctrace::python::CodeRegistry registry{table};
  alloctrace::python::ModuleRegistry modules{table, []() noexcept {}};
  alloctrace::Definitions definitions;

  static constexpr std::size_t kCapacity = std::size_t{64} << 20;

  void read_definitions() {
    alloctrace::Bytes records;
    const std::uint64_t head = log.copy_pending(records);
    definitions.add(records.data(), records.size());
    log.release(head);
  }
};

std::unique_ptr<Session> session;
thread_local StackCache cache{};  // outlives sessions on purpose, as those of the recorder do

#if PY_VERSION_HEX >= 0x030C0000
void take_all_code_watchers() {
  while (PyCode_AddWatcher([](PyCodeEvent, PyCodeObject*) { return 0; }) >= 0) {
  }
  PyErr_Clear();
}
#else
void take_all_code_watchers() {}  // there are none to take
#endif

// start(mode): a new session; mode is "as checked", "no watcher left" (in the first session of the process) or "public
// API".
PyObject* start(PyObject*, PyObject* argument) {
  const char* const text = PyUnicode_AsUTF8(argument);
  if (!text) return nullptr;
  const std::string_view mode = text;
  session.reset();
  if (mode == "no watcher left") take_all_code_watchers();
  const std::string problem = alloctrace::python::check_layout();
  if (!problem.empty() && mode != "public API") return PyErr_Format(PyExc_RuntimeError, "%s", problem.c_str());
  if (mode == "public API") {
    alloctrace::python::use_public_api();
  } else if (mode != "as checked" && mode != "no watcher left") {
    return PyErr_Format(PyExc_ValueError, "unknown mode %s", text);
  }
  session = std::make_unique<Session>();
  Py_RETURN_NONE;
}

// watch_calls(code): from now on its frames are calls of modules. Whether they can be.
PyObject* watch_calls(PyObject*, PyObject* code) {
  PyCodeObject* const watched = code == Py_None ? nullptr : reinterpret_cast<PyCodeObject*>(code);
  return PyBool_FromLong(alloctrace::python::watch_module_calls(watched));
}

// calls_now(): the modules that this thread calls, outermost first.
PyObject* calls_now(PyObject*, PyObject*) {
  PyObject* const result = PyList_New(0);
  for (const alloctrace::python::ModuleCall& call : alloctrace::python::list_module_calls(PyThreadState_Get())) {
    PyList_Append(result, call.module);
  }
  return result;
}

// settle(choose): of the modules that were met since the last call, as (address, id), those for which choose(id) is
// true have this id from now on, the others none. Returns the former as {address: id}.
PyObject* settle(PyObject*, PyObject* choose) {
  const auto sightings = session->modules.consume_sightings(0, true);
  PyObject* const names = PyDict_New();
  for (const auto& sighting : sightings) {
    PyObject* const id = PyLong_FromUnsignedLong(sighting.id);
    PyObject* const address = PyLong_FromVoidPtr(const_cast<void*>(sighting.module));
    PyObject* const chosen = PyObject_CallOneArg(choose, id);
    if (chosen == Py_True) {
      PyDict_SetItem(names, address, id);
      session->modules.bind(sighting.module, sighting.id);
    }
    Py_XDECREF(chosen);
    Py_DECREF(address);
    Py_DECREF(id);
  }
  session->modules.close(sightings);
  return names;
}

PyObject* forget(PyObject*, PyObject* address) {
  if (session) session->modules.forget(PyLong_AsVoidPtr(address));
  Py_RETURN_NONE;
}

PyObject* generation(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(alloctrace::python::generation()); }

PyObject* stack_without_gil(PyObject*, PyObject*) {
  std::uint32_t stack = 0;
  Py_BEGIN_ALLOW_THREADS;
  stack = current_stack(cache, session->registry, session->modules);
  Py_END_ALLOW_THREADS;
  return PyLong_FromUnsignedLong(stack);
}

PyObject* stack_with_gil(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLong(current_stack(cache, session->registry, session->modules));
}

// Holds the GIL while another thread, which waits for that, walks; false when no walk ended within ten seconds.
std::atomic<bool> walker_waits{false};
std::atomic<bool> gil_is_held{false};
std::atomic<bool> walk_is_done{false};

template <typename Condition>
bool wait_for(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

PyObject* hold_gil(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS;
  wait_for([] { return walker_waits.load(); });
  Py_END_ALLOW_THREADS;
  walk_is_done = false;
  gil_is_held = true;
  const bool done = wait_for([] { return walk_is_done.load(); });
  gil_is_held = false;
  return PyBool_FromLong(done);
}

PyObject* stack_while_gil_is_held(PyObject*, PyObject*) {
  std::uint32_t stack = 0;
  Py_BEGIN_ALLOW_THREADS;
  walker_waits = true;
  if (wait_for([] { return gil_is_held.load(); })) {
    stack = current_stack(cache, session->registry, session->modules);
    walk_is_done = true;
  }
  walker_waits = false;
  Py_END_ALLOW_THREADS;
  return PyLong_FromUnsignedLong(stack);
}

// call_on_native_thread(function): on a C++ thread, the stack before it has Python state, the stack with state but
// without Python code, the result of function(), and the stack after the state is gone.
PyObject* call_on_native_thread(PyObject*, PyObject* function) {
  std::uint32_t before = 1, without_code = 1, after = 1;
  PyObject* result = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  std::thread([&] {
    before = current_stack(cache, session->registry, session->modules);
    const PyGILState_STATE state = PyGILState_Ensure();
    without_code = current_stack(cache, session->registry, session->modules);
    result = PyObject_CallNoArgs(function);
    if (!result) PyErr_Print();
    PyGILState_Release(state);
    after = current_stack(cache, session->registry, session->modules);
  }).join();
  Py_END_ALLOW_THREADS;
  if (!result) return PyErr_Format(PyExc_RuntimeError, "the function failed");
  return Py_BuildValue("(IINI)", before, without_code, result, after);
}

// frames(stack): (name, qualified name, file name, line, id of the module that it calls or 0, that module's class) of
// each frame, outermost first, as a reader of a trace has them.
PyObject* frames(PyObject*, PyObject* argument) {
  const unsigned long stack = PyLong_AsUnsignedLong(argument);
  if (PyErr_Occurred()) return nullptr;
  session->read_definitions();
  const alloctrace::Definitions& known = session->definitions;
  PyObject* const result = PyList_New(0);
  for (auto at = static_cast<std::uint32_t>(stack); result && at != 0; at = known.frame(at).parent) {
    const alloctrace::Code& code = known.code(known.frame(at).code);
    const std::uint32_t module = known.frame(at).module;
    PyObject* const frame =
        Py_BuildValue("(sssiIs)", known.string(code.name).c_str(), known.string(code.qualified_name).c_str(),
                      known.string(code.filename).c_str(), known.line(at), module,
                      known.string(known.module(module).class_name).c_str());
    const bool appended = frame && PyList_Append(result, frame) == 0;
    Py_XDECREF(frame);
    if (!appended) {
      Py_DECREF(result);
      return nullptr;
    }
  }
  if (result && PyList_Reverse(result) != 0) return nullptr;
  return result;
}

// frame_count(): frames defined in this session.
PyObject* frame_count(PyObject*, PyObject*) {
  session->read_definitions();
  return PyLong_FromSize_t(session->definitions.frame_count());
}

// walk_anew(count): so many walks of the caller's stack without the GIL, with an empty cache each time.
PyObject* walk_anew(PyObject*, PyObject* argument) {
  const long count = PyLong_AsLong(argument);
  if (PyErr_Occurred()) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  for (long i = 0; i < count; ++i) {
    alloctrace::python::next_generation();
    current_stack(cache, session->registry, session->modules);
  }
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

// set_object_scan(function), request_object_scan(): see pending_calls.h.
PyObject* set_object_scan(PyObject*, PyObject* scan) {
  alloctrace::python::set_object_scan(scan);
  Py_RETURN_NONE;
}

PyObject* request_object_scan(PyObject*, PyObject*) {
  alloctrace::python::request_pending_work(alloctrace::python::PendingWork::kObjectScan);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"start", start, METH_O, nullptr},
    {"watch_calls", watch_calls, METH_O, nullptr},
    {"calls_now", calls_now, METH_NOARGS, nullptr},
    {"settle", settle, METH_O, nullptr},
    {"forget", forget, METH_O, nullptr},
    {"generation", generation, METH_NOARGS, nullptr},
    {"current_stack", stack_without_gil, METH_NOARGS, nullptr},
    {"current_stack_with_gil", stack_with_gil, METH_NOARGS, nullptr},
    {"hold_gil", hold_gil, METH_NOARGS, nullptr},
    {"stack_while_gil_is_held", stack_while_gil_is_held, METH_NOARGS, nullptr},
    {"call_on_native_thread", call_on_native_thread, METH_O, nullptr},
    {"frames", frames, METH_O, nullptr},
    {"frame_count", frame_count, METH_NOARGS, nullptr},
    {"walk_anew", walk_anew, METH_O, nullptr},
    {"set_object_scan", set_object_scan, METH_O, nullptr},
    {"request_object_scan", request_object_scan, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "frame_walk_probe", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_frame_walk_probe() { return PyModule_Create(&definition); }
