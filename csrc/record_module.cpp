// Module pytorch_alloctrace._record: start and stop of a recording, and its steps, marks and regions.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/bounding/trace_bound.h"
#include "python/recording/garbage_collections.h"
#include "python/recording/memory_watch.h"
#include "python/recording/module_names.h"
#include "python/recording/pending_calls.h"
#include "python/recording/session.h"
#include "python/recording/thread_names.h"
#include "torch/cpu_allocator.h"
#include "torch/cuda/allocator.h"
#include "torch/graph_reading.h"
#include "torch/record_event.h"

namespace py = pybind11;

namespace alloctrace {
namespace {

// Bytes per frame in a size-limited recording: two definitions and compacted data. Compaction takes as much memory.
constexpr std::uint64_t kBytesPerFrame = 1024;

// Options of start(): the fields of RecorderOptions in pytorch_alloctrace/recording/options.py.
struct StartOptions {
  RecorderOptions recorder;
  bool python_stacks = false, cpu = false, cuda = false, cuda_is_initialised = false;
};

void limit_size(RecorderOptions& options, std::uint64_t max_bytes, std::uint64_t keep_ns,
                std::pair<std::uint64_t, std::uint64_t> nodes_at_begin) {
  const std::uint64_t definitions_bytes = options.spool.definitions_bytes;
  // Maximum bytes of one write: new definitions and a block of events.
  const std::uint64_t max_write_bytes = definitions_bytes + (std::uint64_t{2} << 20);
  const std::uint64_t spool_bytes = kSpoolHeaderBytes + options.spool.ring_events * sizeof(Event) + definitions_bytes;
  options.stack_limits.frames =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(options.stack_limits.frames, max_bytes / kBytesPerFrame));
  options.stack_limits.name_bytes = std::min(options.stack_limits.name_bytes, max_bytes / 16);
  const SizeLimitOptions bound{options.path, max_bytes, spool_bytes + max_write_bytes, keep_ns, nodes_at_begin};
  options.make_bound = [bound] { return std::make_unique<TraceBound>(bound); };
}

// Throws AttributeError if `fields` lacks a field.
StartOptions read_options(const py::object& fields) {
  const auto read = [&fields](const char* name, auto& value) {
    value = fields.attr(name).cast<std::remove_reference_t<decltype(value)>>();
  };
  StartOptions options;
  RecorderOptions& recorder = options.recorder;
  read("path", recorder.path);
  read("overwrite", recorder.overwrite);
  read("header_json", recorder.header_json);
  read("spool_path", recorder.spool.path);
  read("ring_events", recorder.spool.ring_events);
  read("definitions_bytes", recorder.spool.definitions_bytes);
  read("wait_ns", recorder.spool.wait_ns);
  read("sources", recorder.sources.enabled);
  read("library_prefixes", recorder.sources.library_prefixes);
  read("working_directory", recorder.sources.working_directory);
  read("python_stacks", options.python_stacks);
  read("cpu", options.cpu);
  read("cuda", options.cuda);
  read("cuda_is_initialised", options.cuda_is_initialised);
  std::string session_id;
  read("session_id", session_id);
  if (session_id.size() != sizeof recorder.session_id) throw py::value_error("session_id has 16 bytes");
  std::memcpy(recorder.session_id, session_id.data(), sizeof recorder.session_id);
  std::uint64_t max_bytes = 0, keep_ns = 0;
  std::pair<std::uint64_t, std::uint64_t> nodes_at_begin;
  read("max_bytes", max_bytes);
  read("keep_ns", keep_ns);
  read("nodes_at_begin", nodes_at_begin);
  if (max_bytes != 0) limit_size(recorder, max_bytes, keep_ns, nodes_at_begin);
  return options;
}

// Remove all observers, also those of a start() that failed.
void stop_observing() {
  torch_side::remove_cpu_allocator();
  python::stop_thread_names();
  python::stop_module_names();
  python::stop_garbage_collections();
  python::set_object_scan(nullptr);
  const py::gil_scoped_release unlocked;  // the following calls wait for hooks, whose threads may wait for the GIL
  torch_side::remove_cuda_allocator();
  python::stop_memory_watch();
}

// Ctrl-C check for a wait for the file, if Ctrl-C raises KeyboardInterrupt. No signal handler runs during the wait: it
// could end the recording. Created and destroyed with the GIL, called without.
class InterruptCheck {
 public:
  InterruptCheck() {
    try {
      const py::module_ signals = py::module_::import("_signal");
      raises_interrupt_ = signals.attr("getsignal")(SIGINT).is(signals.attr("default_int_handler"));
    } catch (const py::error_already_set&) {  // the interpreter is shutting down
    }
  }
  bool operator()() {
    if (!raises_interrupt_ || interrupted_) return interrupted_;
    const py::gil_scoped_acquire locked;
    interrupted_ = PyOS_InterruptOccurred() != 0;
    return interrupted_;
  }
  // Raise KeyboardInterrupt if Ctrl-C was pressed.
  void raise() const {
    if (!interrupted_) return;
    PyErr_SetInterrupt();
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }

 private:
  bool raises_interrupt_ = false, interrupted_ = false;
};

// Stop recording. Return whether the trace is complete, and whether its spool was gone.
std::pair<bool, bool> stop(const std::string& end_json) {
  stop_observing();
  InterruptCheck interrupt;
  std::pair<bool, bool> outcome;
  {
    const py::gil_scoped_release unlocked;
    outcome = python::stop_session(end_json, std::ref(interrupt));
  }
  interrupt.raise();
  return outcome;
}

// End a recording whose start failed, and remove its files.
void discard() {
  stop_observing();
  const py::gil_scoped_release unlocked;
  python::discard_session();
}

void start(const py::object& fields) {
  const StartOptions options = read_options(fields);
  try {
    const std::uint64_t number = python::start_session(options.recorder, options.python_stacks);
    python::start_thread_names();
    python::start_memory_watch(number);
    python::start_garbage_collections(&torch_side::record_garbage_collection);
    if (options.cpu) torch_side::install_cpu_allocator();
    if (options.cuda) {
      const py::gil_scoped_release unlocked;  // the allocator's locks may be held by threads that wait for the GIL
      torch_side::install_cuda_allocator(options.cuda_is_initialised);
    }
  } catch (const std::system_error& error) {
    discard();
    throw std::runtime_error("no thread can be started to record with (" + error.code().message() +
                             "): raise the limit on processes and threads (ulimit -u)");
  } catch (...) {
    discard();
    throw;
  }
}

// Treat frames of `code` as module calls; None: no frames. Called before start(). Return whether modules are recorded.
bool watch_modules(const py::object& code, const py::object& resolve, unsigned long main_thread) {
  const bool is_code = PyCode_Check(code.ptr());
  if (!python::watch_module_calls(is_code ? reinterpret_cast<PyCodeObject*>(code.ptr()) : nullptr)) return false;
  if (is_code) python::start_module_names(resolve.ptr(), main_thread);
  return is_code;
}

std::uint32_t name_module(std::uint32_t id, const std::string& class_name, std::uint32_t owner,
                          const std::string& name) {
  python::HookScope scope;
  return scope ? scope.session().modules.name(id, class_name, owner, name) : 0;
}

void bind_module(std::uintptr_t address, std::uint32_t id) {
  python::HookScope scope;
  if (scope) scope.session().modules.bind(reinterpret_cast<const void*>(address), id);
}

// Return the objects in `count` slots, `first` bytes after the address in a field of `object`; `unset` for empty slots.
// The slots are variables of a frame: its thread would free them if it ran before all references are taken.
py::list read_slots(py::handle object, std::size_t field, std::ptrdiff_t first, std::size_t count, py::handle unset) {
  py::list objects(count);  // created first: this may start a garbage collection
  const char* start = nullptr;
  std::memcpy(&start, reinterpret_cast<const char*>(object.ptr()) + field, sizeof start);
  auto* const* const slots = reinterpret_cast<PyObject* const*>(start + first);
  for (std::size_t slot = 0; slot < count; ++slot) {
    const py::handle value = slots[slot] == nullptr ? unset : py::handle(slots[slot]);
    PyList_SET_ITEM(objects.ptr(), static_cast<Py_ssize_t>(slot), value.inc_ref().ptr());
  }
  return objects;
}

void forget_module(std::uintptr_t address) {
  python::HookScope scope;
  if (scope) scope.session().modules.forget(reinterpret_cast<const void*>(address));
}

// Give spool and trace their names: the last step of a start.
void publish() {
  python::HookScope scope;
  if (scope) scope.session().recorder.publish();
}

bool flush() {
  python::look_up_thread_names();
  if (!python::look_up_module_names()) throw py::error_already_set();
  InterruptCheck interrupt;
  bool written = false;
  {
    const py::gil_scoped_release unlocked;
    python::HookScope scope;  // keeps another thread from ending the session
    written = scope && scope.session().recorder.flush(std::ref(interrupt));
  }
  interrupt.raise();
  return written;
}

// Return counts of events, lost events by cause, empty allocations and calls inside hooks; None while not recording.
py::object counts() {
  std::uint64_t events = 0;
  Counters counters{};
  {
    python::HookScope scope;
    if (!scope) return py::none();
    Spool& spool = scope.session().recorder.spool();
    events = spool.event_count();
    counters = spool.counters();
  }
  // Outside the scope, in which frees are not recorded: a new Python object may start a garbage collection.
  py::tuple lost(kLossCauseCount);
  for (std::size_t cause = 0; cause < kLossCauseCount; ++cause) lost[cause] = counters.lost[cause];
  return py::make_tuple(events, lost, counters.empty_allocations, counters.reentered);
}

// Return (device, requested, allocated, active, reserved) of each device.
std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>> cuda_totals() {
  std::vector<torch_side::CudaTotals> totals;
  {
    const py::gil_scoped_release unlocked;
    totals = torch_side::cuda_totals();
  }
  std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>> rows;
  for (const auto& row : totals) rows.emplace_back(row.device, row.requested, row.allocated, row.active, row.reserved);
  return rows;
}

std::vector<std::pair<std::string, std::int32_t>> drain_unread_source_lines() {
  python::HookScope scope;
  if (!scope) return {};
  return scope.session().recorder.sources().drain_unread();
}

void add_source_line(const std::string& filename, std::int32_t line, const std::string& text) {
  python::HookScope scope;
  if (scope) scope.session().recorder.add_source_line(filename, line, text);
}

bool spool_is_gone() {
  python::HookScope scope;
  return scope && scope.session().recorder.is_spool_truncated();
}

std::uint64_t next_event() {
  python::HookScope scope;
  return scope ? scope.session().recorder.next_event() : 0;
}

// Fields of a ContainerRecord.
using Container = std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

bool add_holder(std::uint64_t event, const std::string& holder, const std::string& path, const std::string& filename,
                std::uint64_t line, std::uint64_t count, std::uint64_t bytes,
                const std::vector<std::uint64_t>& addresses, bool is_garbage, const std::vector<Container>& containers,
                std::uint64_t nodes, bool has_all_nodes, std::uint64_t foreign_bytes, const std::string& name,
                const std::string& scope, const std::string& function, const std::string& through,
                const std::tuple<std::string, std::string, std::string, std::uint64_t>& store,
                std::uint64_t tensor_bytes, const std::string& back_reference, const std::string& dtype) {
  python::HookScope hook;
  if (!hook) return false;
  std::vector<ContainerRecord> records;
  for (const auto& [type, length, size, bound, nones] : containers) {
    records.push_back({type, length, size, bound, nones});
  }
  const auto& [store_kind, store_filename, store_function, store_line] = store;
  return hook.session().recorder.add_holder(
      {event,      line,          count,          bytes,          holder,
       path,       filename,      addresses,      is_garbage,     std::move(records),
       nodes,      has_all_nodes, foreign_bytes,  name,           scope,
       function,   through,       store_kind,     store_filename, store_function,
       store_line, tensor_bytes,  back_reference, dtype});
}

// Address, device type, device index, role, name, id of the module.
using RoleTuple = std::tuple<std::uint64_t, std::int32_t, std::int32_t, int, std::string, std::uint32_t>;

void push_roles(const std::vector<RoleTuple>& roles) {
  std::vector<torch_side::RoleNote> notes;
  notes.reserve(roles.size());
  for (const auto& [address, device_type, device_index, role, name, module] : roles) {
    notes.push_back({address, device_type, device_index, static_cast<Role>(role), name, module});
  }
  torch_side::record_roles(notes);
}

void define_session(py::module_& module) {
  module.def("start", &start, py::arg("options"));
  module.def("publish", &publish);
  module.def("stop", &stop, py::arg("end_json"));
  module.def("discard", &discard);
  module.def("flush", &flush);
  module.def("announce_stop", [] {
    python::HookScope scope;
    if (scope) scope.session().recorder.announce_stop();
  });
  module.def("is_recording", &python::session_is_active);
  module.def("counts", &counts);
  module.def("next_event", &next_event);
  module.def("spool_is_gone", &spool_is_gone);
  module.def("met_subinterpreter", &python::met_subinterpreter);
}

void define_allocators(py::module_& module) {
  module.attr("has_cuda") = torch_side::cuda_allocator_is_built();
  module.def("snapshot", [] {
    const py::gil_scoped_release unlocked;
    return torch_side::snapshot_cuda_allocator();
  });
  module.def("cuda_totals", &cuda_totals);
  module.def("records_python_storages", &torch_side::records_python_storages);
  module.def("cuda_allocator_instead_of_ours", &torch_side::cuda_allocator_instead_of_ours);
}

// Steps, marks, regions and roles.
void define_annotations(py::module_& module) {
  module.def("push_step", &torch_side::record_step, py::arg("number"), py::arg("is_explicit"));
  module.def("push_mark", [](const std::string& name) { torch_side::record_position(EventKind::kMark, name); });
  module.def("push_region_begin",
             [](const std::string& name) { torch_side::record_position(EventKind::kRegionBegin, name); });
  module.def("push_region_end",
             [](const std::string& name) { torch_side::record_position(EventKind::kRegionEnd, name); });
  module.def("push_roles", &push_roles, py::arg("roles"));
}

// Instances of torch.nn.Module in stacks.
void define_module_names(py::module_& module) {
  module.def("watch_modules", &watch_modules, py::arg("code"), py::arg("resolve"), py::arg("main_thread"));
  module.def("name_module", &name_module, py::arg("id"), py::arg("class_name"), py::arg("owner"), py::arg("name"));
  module.def("bind_module", &bind_module, py::arg("address"), py::arg("id"));
  module.def("forget_module", &forget_module, py::arg("address"));
}

void define_source_lines(py::module_& module) {
  module.def("drain_unread_source_lines", &drain_unread_source_lines);
  module.def("add_source_line", &add_source_line);
}

// Object scans, and what they read from frames and autograd graphs.
void define_object_scans(py::module_& module) {
  // The main thread scans the program's objects between two of its instructions.
  module.def("set_object_scan", [](const py::function& scan) { python::set_object_scan(scan.ptr()); });
  module.def("request_object_scan", [] { python::request_pending_work(python::PendingWork::kObjectScan); });
  module.def("add_holder", &add_holder, py::kw_only(), py::arg("event"), py::arg("holder"), py::arg("path"),
             py::arg("filename"), py::arg("line"), py::arg("count"), py::arg("bytes"), py::arg("addresses"),
             py::arg("is_garbage"), py::arg("containers"), py::arg("nodes"), py::arg("has_all_nodes"),
             py::arg("foreign_bytes"), py::arg("name"), py::arg("scope"), py::arg("function"), py::arg("through"),
             py::arg("store"), py::arg("tensor_bytes"), py::arg("back_reference"), py::arg("dtype"));
  module.def("read_slots", &read_slots, py::arg("object"), py::arg("field"), py::arg("first"), py::arg("count"),
             py::arg("unset"));
  module.def("graph_referents", &torch_side::graph_referents, py::arg("node"), py::arg("getters"),
             py::arg("saved_type"));
  module.def("gradient_of", &torch_side::gradient_of, py::arg("tensor"));
}

}  // namespace

PYBIND11_MODULE(_record, module) {
  module.doc() = "The recorder: observes torch's allocators and writes the trace.";
  module.attr("stack_problem") = python::check_layout();
  python::register_fork_handlers();
  define_session(module);
  define_allocators(module);
  define_annotations(module);
  define_module_names(module);
  define_source_lines(module);
  define_object_scans(module);
}

}  // namespace alloctrace
