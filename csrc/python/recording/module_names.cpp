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

PyObject* name_resolver = nullptr;  // guarded by the GIL
std::atomic<unsigned long> main_thread{0};
std::atomic<bool> other_threads_wait{false};

unsigned long calling_thread_id() noexcept { return static_cast<unsigned long>(pthread_self()); }

using Stacks = std::vector<std::vector<Reference>>;
using SightedIds = std::vector<std::pair<const void*, std::uint32_t>>;

// Return the modules that are called on the threads of these sightings. Creates no Python object: that could start a
// garbage collection, and inside the caller's HookScope forget_module() would ignore modules that are destroyed.
Stacks collect_stacks(const std::vector<ModuleRegistry::Sighting>& sightings, bool on_main_thread, SightedIds& ids) {
  Stacks stacks;
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Main()); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    std::unordered_map<const void*, const ModuleRegistry::Sighting*> sighting_of_frame;
    for (const ModuleRegistry::Sighting& sighting : sightings) {
      if (sighting.thread == thread->thread_id) sighting_of_frame.emplace(sighting.frame, &sighting);
    }
    if (sighting_of_frame.empty()) continue;
    std::vector<Reference> stack;
    for (const ModuleCall& call : list_module_calls(thread)) {
      Py_INCREF(call.module);
      stack.emplace_back(call.module);
      const auto sighting = sighting_of_frame.find(call.frame);
      if (on_main_thread && sighting != sighting_of_frame.end() && sighting->second->thread == calling_thread_id() &&
          sighting->second->module == call.module) {
        ids.emplace_back(call.module, sighting->second->id);
      }
    }
    if (!stack.empty()) stacks.push_back(std::move(stack));
  }
  return stacks;
}

bool call_resolver(const Stacks& stacks, const SightedIds& ids) {
  const Reference lists(PyList_New(0));
  const Reference id_map(PyDict_New());
  if (!lists || !id_map) return false;
  for (const std::vector<Reference>& modules : stacks) {
    const Reference list(PyList_New(0));
    if (!list || PyList_Append(lists.get(), list.get()) != 0) return false;
    for (const Reference& module : modules) {
      if (PyList_Append(list.get(), module.get()) != 0) return false;
    }
  }
  for (const auto& [module, id] : ids) {
    const Reference address(PyLong_FromVoidPtr(const_cast<void*>(module)));
    const Reference number(PyLong_FromUnsignedLong(id));
    if (!address || !number || PyDict_SetItem(id_map.get(), address.get(), number.get()) != 0) return false;
  }
  const Reference callable(Py_XNewRef(name_resolver));
  if (!callable) return true;
  return static_cast<bool>(Reference(PyObject_CallFunctionObjArgs(callable.get(), lists.get(), id_map.get(), nullptr)));
}

bool look_up_sightings() {
  const bool on_main_thread = calling_thread_id() == main_thread.load(std::memory_order_relaxed);
  if (!on_main_thread) other_threads_wait.store(false, std::memory_order_release);
  std::vector<ModuleRegistry::Sighting> sightings;
  Stacks stacks;
  SightedIds ids;
  std::uint64_t session = 0;
  {
    HookScope scope;
    if (!scope || name_resolver == nullptr) return true;
    session = scope.session().number;
    sightings = scope.session().modules.consume_sightings(main_thread.load(std::memory_order_relaxed), !on_main_thread);
    if (sightings.empty()) return true;
    stacks = collect_stacks(sightings, on_main_thread, ids);
  }
  const bool called = stacks.empty() || call_resolver(stacks, ids);
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  {
    HookScope scope;
    if (scope && scope.session().number == session) scope.session().modules.close(sightings);
  }
  PyErr_Restore(type, value, traceback);
  // Raised by the call itself; the resolver catches its other errors. These modules stay named by class.
  if (!called && (PyErr_ExceptionMatches(PyExc_MemoryError) || PyErr_ExceptionMatches(PyExc_RecursionError))) {
    PyErr_Clear();
    return true;
  }
  return called;
}

}  // namespace

void start_module_names(PyObject* resolve, unsigned long main) {
  Py_XINCREF(resolve);
  Py_XDECREF(std::exchange(name_resolver, resolve));
  main_thread.store(main, std::memory_order_relaxed);
  forget_module_names();
}

void forget_module_names() noexcept { other_threads_wait.store(false, std::memory_order_relaxed); }
void stop_module_names() { Py_CLEAR(name_resolver); }

void request_module_names() noexcept {
  if (calling_thread_id() == main_thread.load(std::memory_order_relaxed)) {
    request_pending_work(PendingWork::kModuleNames);
  } else if (!other_threads_wait.exchange(true, std::memory_order_acq_rel)) {
    wake_name_thread();
  }
}

bool look_up_module_names() {
  try {
    return look_up_sightings();
  } catch (const std::bad_alloc&) {
    return true;  // the modules stay named by class
  }
}

bool has_module_name_requests() noexcept { return other_threads_wait.load(std::memory_order_acquire); }

}  // namespace alloctrace::python
