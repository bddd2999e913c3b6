#include "module_names.h"

#include <pthread.h>

#include <atomic>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cpython_layout.h"
#include "frame_walk.h"
#include "module_registry.h"
#include "pending_calls.h"
#include "python_reference.h"
#include "session.h"
#include "thread_names.h"

namespace alloctrace::python {
namespace {

PyObject* resolver = nullptr;  // with the GIL
std::atomic<unsigned long> main_thread{0};
std::atomic<bool> others_wait{false};

unsigned long this_thread() noexcept { return static_cast<unsigned long>(pthread_self()); }

using Stacks = std::vector<std::vector<Reference>>;
using Seen = std::vector<std::pair<const void*, std::uint32_t>>;

// What is being called on the threads of these sightings. No Python object is made here: that may collect garbage, and
// the deaths of modules must be heard.
Stacks stacks_of(const std::vector<ModuleRegistry::Sighting>& sightings, bool on_main_thread, Seen& seen) {
  Stacks stacks;
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Main()); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    std::unordered_map<const void*, const ModuleRegistry::Sighting*> of_frame;
    for (const ModuleRegistry::Sighting& sighting : sightings) {
      if (sighting.thread == thread->thread_id) of_frame.emplace(sighting.frame, &sighting);
    }
    if (of_frame.empty()) continue;
    std::vector<Reference> stack;
    for (const ModuleCall& call : module_calls(thread)) {
      Py_INCREF(call.module);
      stack.emplace_back(call.module);
      const auto sighting = of_frame.find(call.frame);
      if (on_main_thread && sighting != of_frame.end() && sighting->second->thread == this_thread() &&
          sighting->second->module == call.module) {
        seen.emplace_back(call.module, sighting->second->id);
      }
    }
    if (!stack.empty()) stacks.push_back(std::move(stack));
  }
  return stacks;
}

bool call_resolver(const Stacks& stacks, const Seen& seen) {
  const Reference all(PyList_New(0));
  const Reference ids(PyDict_New());
  if (!all || !ids) return false;
  for (const std::vector<Reference>& modules : stacks) {
    const Reference list(PyList_New(0));
    if (!list || PyList_Append(all.get(), list.get()) != 0) return false;
    for (const Reference& module : modules) {
      if (PyList_Append(list.get(), module.get()) != 0) return false;
    }
  }
  for (const auto& [module, id] : seen) {
    const Reference address(PyLong_FromVoidPtr(const_cast<void*>(module)));
    const Reference number(PyLong_FromUnsignedLong(id));
    if (!address || !number || PyDict_SetItem(ids.get(), address.get(), number.get()) != 0) return false;
  }
  const Reference callable(Py_XNewRef(resolver));
  if (!callable) return true;
  return static_cast<bool>(Reference(PyObject_CallFunctionObjArgs(callable.get(), all.get(), ids.get(), nullptr)));
}

bool find_names() {
  const bool on_main_thread = this_thread() == main_thread.load(std::memory_order_relaxed);
  if (!on_main_thread) others_wait.store(false, std::memory_order_release);
  std::vector<ModuleRegistry::Sighting> sightings;
  Stacks stacks;
  Seen seen;
  std::uint64_t session = 0;
  {
    HookScope scope;
    if (!scope || resolver == nullptr) return true;
    session = scope.session().number;
    sightings = scope.session().modules.take_sightings(main_thread.load(std::memory_order_relaxed), !on_main_thread);
    if (sightings.empty()) return true;
    stacks = stacks_of(sightings, on_main_thread, seen);
  }
  const bool called = stacks.empty() || call_resolver(stacks, seen);
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  {
    HookScope scope;
    if (scope && scope.session().number == session) scope.session().modules.close(sightings);
  }
  PyErr_Restore(type, value, traceback);
  // Raised by the call itself; the resolver catches its other errors. These modules keep their classes.
  if (!called && (PyErr_ExceptionMatches(PyExc_MemoryError) || PyErr_ExceptionMatches(PyExc_RecursionError))) {
    PyErr_Clear();
    return true;
  }
  return called;
}

}  // namespace

void start_module_names(PyObject* resolve, unsigned long main) {
  Py_XINCREF(resolve);
  Py_XDECREF(std::exchange(resolver, resolve));
  main_thread.store(main, std::memory_order_relaxed);
  forget_module_names();
}

void forget_module_names() noexcept { others_wait.store(false, std::memory_order_relaxed); }

void stop_module_names() { Py_CLEAR(resolver); }

void ask_module_names() noexcept {
  if (this_thread() == main_thread.load(std::memory_order_relaxed)) {
    request_pending_work(PendingWork::kModuleNames);
  } else if (!others_wait.exchange(true, std::memory_order_acq_rel)) {
    wake_thread_names();
  }
}

bool find_module_names() {
  try {
    return find_names();
  } catch (const std::bad_alloc&) {
    return true;  // they keep their classes
  }
}

bool module_names_are_wanted() noexcept { return others_wait.load(std::memory_order_acquire); }

}  // namespace alloctrace::python
