#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../../core/compaction/compacted_trace.h"
#include "../../core/reading/finish_trace.h"
#include "../../core/reading/trace_reader.h"
#include "../../core/replay/stack_kinds.h"
#include "../../core/replay/trace_cursor.h"
#include "bindings.h"
#include "event_stream.h"
#include "node_names.h"
#include "numpy_columns.h"
#include "python_text.h"

namespace py = pybind11;

namespace alloctrace {
namespace {

// Return the calling-context tree by stack id (0: no stack). same: first stack with equal frames, in any module.
py::dict stack_table(const TraceReader& trace) {
  const Definitions& definitions = trace.definitions();
  const std::size_t count = std::max<std::size_t>(definitions.frame_count(), 1);
  std::vector<std::uint32_t> parent(count), name(count), qualified_name(count), filename(count);
  std::vector<std::uint32_t> module(count), same_frames(count);
  std::vector<std::int32_t> line;
  {
    const py::gil_scoped_release unlocked;  // a prefetching thread must not block imports
    line = definitions.lines();
    line.resize(count);
    const SameStacks same_stacks(definitions);
    for (std::uint32_t id = 1; id < count; ++id) {
      const FrameRecord& frame = definitions.frame(id);
      const Code& code = definitions.code(frame.code);
      parent[id] = frame.parent;
      name[id] = code.name;
      qualified_name[id] = code.qualified_name;
      filename[id] = code.filename;
      module[id] = frame.module;
      same_frames[id] = same_stacks.first_equal(id);
    }
  }
  py::dict result;
  result["parent"] = to_array(std::move(parent));
  result["name"] = to_array(std::move(name));
  result["qualified_name"] = to_array(std::move(qualified_name));
  result["filename"] = to_array(std::move(filename));
  result["line"] = to_array(std::move(line));
  result["module"] = to_array(std::move(module));
  result["same"] = to_array(std::move(same_frames));
  return result;
}

// Return class, owner (0: none) and name ("": unknown) of each module, by id; 0: no module.
std::vector<std::tuple<py::str, std::uint32_t, py::str>> modules(const TraceReader& trace) {
  const Definitions& definitions = trace.definitions();
  std::vector<std::tuple<py::str, std::uint32_t, py::str>> result;
  for (std::uint32_t id = 0; id < definitions.module_count(); ++id) {
    const ModuleRecord& module = definitions.module(id);
    result.emplace_back(text(definitions.string(module.class_name)), module.owner,
                        text(definitions.string(module.name)));
  }
  return result;
}

// Return kind ("before", "library", "node") and name of each synthetic stack, by id (see Definitions::origin_of).
std::vector<std::pair<std::string, py::str>> stack_labels(const TraceReader& trace) {
  const Definitions& definitions = trace.definitions();
  std::vector<std::pair<std::string, py::str>> labels{{"before", py::str()}};
  for (const std::string& name : definitions.library_names()) labels.emplace_back("library", text(name));
  for (std::uint32_t id = 0; id < definitions.node_type_count(); ++id) {
    labels.emplace_back("node", text(readable_node_type(definitions.node_type(id))));
  }
  return labels;
}

// Return all records of one kind, by id.
template <typename Record>
std::vector<Record> records(const Definitions& definitions, std::size_t count,
                            const Record& (Definitions::*get)(std::uint32_t) const) {
  std::vector<Record> result;
  for (std::uint32_t id = 0; id < count; ++id) result.push_back((definitions.*get)(id));
  return result;
}

// Return the paths of trace and spool in the header, encoded by os.fsencode; empty if the header is corrupt.
TraceReader::RecordedPaths parse_header_paths(const std::string& json) {
  const py::gil_scoped_acquire locked;
  try {
    const py::object header = py::module_::import("json").attr("loads")(py::bytes(json));
    const py::object encode = py::module_::import("os").attr("fsencode");
    return {encode(header["trace"]).cast<std::string>(), encode(header["spool"]).cast<std::string>()};
  } catch (const py::error_already_set&) {
    return {};
  }
}

void define_integrity(py::module_& module) {
  py::class_<Integrity>(module, "Integrity")
      .def_property_readonly("state", &Integrity::state)
      .def_readonly("events", &Integrity::events)
      .def_property_readonly("lost", &Integrity::lost)
      .def_property_readonly("lost_by_cause",
                             [](const Integrity& integrity) {
                               const auto lost = [&](LossCause cause) {
                                 return integrity.counters.lost[static_cast<std::size_t>(cause)];
                               };
                               py::dict result;
                               result["ring_full"] = lost(LossCause::kRingFull);
                               result["write_failed"] = lost(LossCause::kWriteFailed);
                               result["fault"] = lost(LossCause::kFault);
                               return result;
                             })
      .def_readonly("missing_events", &Integrity::missing_events)
      .def_readonly("corrupt_blocks", &Integrity::corrupt_blocks)
      .def_readonly("corrupt_bytes", &Integrity::corrupt_bytes)
      .def_readonly("truncated_bytes", &Integrity::truncated_bytes)
      .def_readonly("recovered", &Integrity::recovered)
      .def_readonly("uncommitted", &Integrity::uncommitted)
      .def_readonly("compacted_events", &Integrity::compacted_events)
      .def_readonly("compacted_until", &Integrity::compacted_until)
      .def_readonly("compacted_until_ns", &Integrity::compacted_until_ns)
      .def_readonly("max_bytes", &Integrity::max_bytes)
      .def_readonly("bound_exceeded", &Integrity::bound_exceeded)
      .def_readonly("keep_ns", &Integrity::keep_ns)
      .def_readonly("keeps_less", &Integrity::keeps_less)
      .def_readonly("ended", &Integrity::ended)
      .def_readonly("spool_read", &Integrity::spool_read)
      .def_property_readonly("empty_allocations", [](const Integrity& self) { return self.counters.empty_allocations; })
      .def_property_readonly("reentered", [](const Integrity& self) { return self.counters.reentered; })
      .def_property_readonly("unknown_stacks", [](const Integrity& self) { return self.counters.unknown_stacks; });
}

void define_location(py::module_& module) {
  py::class_<Location>(module, "Location")
      .def_readonly("device_type", &Location::device_type)
      .def_readonly("device_index", &Location::device_index)
      .def_property_readonly("stream", [](const Location& self) { return clamped(self.stream); })
      .def_property_readonly("pool",
                             [](const Location& self) { return py::make_tuple(self.pool_first, self.pool_second); });
}

void define_thread(py::module_& module) {
  py::class_<ThreadRecord>(module, "Thread")
      .def_readonly("native_id", &ThreadRecord::native_id)
      .def_readonly("autograd_id", &ThreadRecord::autograd_id)
      .def_property_readonly("name", text_of(&ThreadRecord::name))
      .def_property_readonly("python_name", text_of(&ThreadRecord::python_name));
}

void define_device(py::module_& module) {
  py::class_<DeviceRecord>(module, "Device")
      .def_readonly("device_type", &DeviceRecord::device_type)
      .def_readonly("device_index", &DeviceRecord::device_index)
      .def_readonly("bytes", &DeviceRecord::bytes)
      .def_property_readonly("name", text_of(&DeviceRecord::name))
      .def_property_readonly("uuid", text_of(&DeviceRecord::uuid))
      .def_property_readonly("pci_address", text_of(&DeviceRecord::pci_address));
}

void define_finishing(py::module_& module) {
  py::class_<FinishedTrace>(module, "FinishedTrace")
      .def_readonly("was_ended", &FinishedTrace::was_ended)
      .def_property_readonly("spool", [](const FinishedTrace& trace) { return py::bytes(trace.spool_path); })
      .def_property_readonly("recorded_path", [](const FinishedTrace& trace) { return py::bytes(trace.recorded_path); })
      .def_readonly("events", &FinishedTrace::events)
      .def_readonly("uncommitted", &FinishedTrace::uncommitted);
  module.def(
      "finish_trace",
      [](const std::string& path, const std::string& spool_path, bool force) {
        const py::gil_scoped_release unlocked;
        return finish_trace(path, spool_path, parse_header_paths, force);
      },
      py::arg("path"), py::arg("spool_path") = "", py::arg("force") = false);
}

void define_compaction(py::module_& module) {
  py::class_<CompactedTrace>(module, "CompactedTrace")
      .def_readonly("events", &CompactedTrace::events)
      .def_readonly("until", &CompactedTrace::until)
      .def_readonly("bytes_before", &CompactedTrace::bytes_before)
      .def_readonly("bytes_after", &CompactedTrace::bytes_after);
  module.def(
      "compact_trace",
      [](const std::shared_ptr<TraceReader>& trace, std::uint64_t until, const std::string& out, bool overwrite,
         std::pair<std::uint64_t, std::uint64_t> nodes_at_begin, const py::object& callback) {
        const Progress progress = with_gil(callback);
        const py::gil_scoped_release unlocked;
        return compact_trace(trace, until, out, overwrite, nodes_at_begin, progress);
      },
      py::arg("trace"), py::arg("until"), py::arg("out"), py::arg("overwrite") = false,
      py::arg("nodes_at_begin") = std::pair<std::uint64_t, std::uint64_t>(), py::arg("progress") = py::none());
}

void define_trace_reader(py::module_& module) {
  py::class_<TraceReader, std::shared_ptr<TraceReader>>(module, "TraceReader")
      .def(py::init([](const std::string& path, const std::string& spool_path, const py::object& callback) {
             const Progress progress = with_gil(callback);
             const py::gil_scoped_release unlocked;
             return std::make_shared<TraceReader>(path, spool_path, progress, parse_header_paths);
           }),
           py::arg("path"), py::arg("spool_path") = "", py::arg("progress") = py::none())
      .def_property_readonly("header_json", [](const TraceReader& trace) { return text(trace.header_json()); })
      .def_property_readonly("end_json", [](const TraceReader& trace) { return text(trace.end_json()); })
      .def_property_readonly("file_bytes", &TraceReader::file_bytes)
      .def_property_readonly("begin_ns", &TraceReader::begin_ns)
      .def_property_readonly("end_ns", &TraceReader::end_ns)
      .def_property_readonly("end_seq",
                             [](const TraceReader& trace) -> std::uint64_t {
                               const std::vector<Chunk>& chunks = trace.chunks();
                               return chunks.empty() ? trace.compacted_until() : chunks.back().end_sequence();
                             })
      .def_property_readonly("integrity", [](const TraceReader& trace) { return trace.integrity(); })
      .def("stack_table", &stack_table)
      .def("modules", &modules)
      .def("stack_labels", &stack_labels)
      .def("library_blocks", [](const TraceReader& trace) { return trace.definitions().library_blocks(); })
      .def("holders",
           [](const TraceReader& trace) {
             py::list result;
             for (const HolderRecord& row : trace.definitions().holders()) {
               std::vector<std::int64_t> addresses(row.addresses.begin(), row.addresses.end());
               py::list containers;
               for (const ContainerRecord& container : row.containers) {
                 py::dict fields;
                 fields["type"] = text(container.type);
                 fields["length"] = container.length;
                 fields["size"] = container.size;
                 fields["bound"] = container.bound;
                 fields["nones"] = container.nones;
                 containers.append(fields);
               }
               result.append(py::make_tuple(row.event, text(row.holder), text(row.path), text(row.filename), row.line,
                                            row.count, row.bytes, to_array(std::move(addresses)), row.is_garbage,
                                            containers, row.nodes, row.has_all_nodes, row.foreign_bytes, text(row.name),
                                            text(row.scope), text(row.function), text(row.through),
                                            py::make_tuple(text(row.store_kind), text(row.store_filename),
                                                           text(row.store_function), row.store_line),
                                            row.tensor_bytes, text(row.back_reference), text(row.dtype)));
             }
             return result;
           })
      .def("children",
           [](const TraceReader& trace) {
             py::list result;
             for (const ChildRecord& row : trace.definitions().children()) {
               result.append(py::make_tuple(row.event, row.process_id, row.parent_id, text(row.command)));
             }
             return result;
           })
      // 64 bits: the id is the size of an event, which in a corrupt trace may exceed 32 bits.
      .def("string",
           [](const TraceReader& trace, std::uint64_t id) {
             return id > UINT32_MAX ? py::str() : text(trace.definitions().string(static_cast<std::uint32_t>(id)));
           })
      .def("source",
           [](const TraceReader& trace, std::uint32_t filename, std::int32_t line) -> py::object {
             const std::string* source = trace.definitions().source(filename, line);
             return source ? py::object(text(*source)) : py::object(py::none());
           })
      .def("devices",
           [](const TraceReader& trace) {
             std::vector<DeviceRecord> result;
             for (const auto& [key, device] : trace.definitions().devices()) result.push_back(device);
             return result;
           })
      .def("locations",
           [](const TraceReader& trace) {
             const Definitions& definitions = trace.definitions();
             return records(definitions, definitions.location_count(), &Definitions::location);
           })
      .def("threads",
           [](const TraceReader& trace) {
             const Definitions& definitions = trace.definitions();
             return records(definitions, definitions.thread_count(), &Definitions::thread);
           })
      .def("node_types",
           [](const TraceReader& trace) {
             py::list result;
             for (std::uint32_t id = 0; id < trace.definitions().node_type_count(); ++id) {
               result.append(text(readable_node_type(trace.definitions().node_type(id))));
             }
             return result;
           })
      .def(
          "events",
          [](const std::shared_ptr<TraceReader>& trace, std::uint64_t first, std::uint64_t end,
             const std::vector<std::uint8_t>& kinds, bool with_state) {
            TraceCursor cursor(trace, with_state);
            if (!with_state) cursor.seek(first);
            return EventStream(std::move(cursor), first, end, kinds);
          },
          py::arg("first") = 0, py::arg("end") = UINT64_MAX, py::arg("kinds") = std::vector<std::uint8_t>(),
          py::arg("with_state") = true);
}

}  // namespace

void define_trace_reading(py::module_& module) {
  define_integrity(module);
  define_location(module);
  define_thread(module);
  define_device(module);
  define_trace_reader(module);
  define_finishing(module);
  define_compaction(module);
}

}  // namespace alloctrace
