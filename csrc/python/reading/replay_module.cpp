// Module pytorch_alloctrace._replay: reads traces into numpy arrays, without torch or a GPU.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../../core/compaction/compacted_trace.h"
#include "../../core/reading/finish_trace.h"
#include "../../core/reading/trace_reader.h"
#include "../../core/replay/allocator_rules.h"
#include "../../core/replay/replay_run.h"
#include "../../core/replay/stack_kinds.h"
#include "bindings.h"
#include "event_stream.h"
#include "node_names.h"
#include "numpy_columns.h"

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

py::str to_str(const std::string& bytes) {
  // Replace invalid bytes: file names need not be UTF-8, and corrupt traces contain any bytes.
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

// Return class, owner (0: none) and name ("": unknown) of each module, by id; 0: no module.
std::vector<std::tuple<py::str, std::uint32_t, py::str>> modules(const TraceReader& trace) {
  const Definitions& definitions = trace.definitions();
  std::vector<std::tuple<py::str, std::uint32_t, py::str>> result;
  for (std::uint32_t id = 0; id < definitions.module_count(); ++id) {
    const ModuleRecord& module = definitions.module(id);
    result.emplace_back(to_str(definitions.string(module.class_name)), module.owner,
                        to_str(definitions.string(module.name)));
  }
  return result;
}

// Return kind ("before", "library", "node") and name of each synthetic stack, by id (see Definitions::origin_of).
std::vector<std::pair<std::string, py::str>> stack_labels(const TraceReader& trace) {
  const Definitions& definitions = trace.definitions();
  std::vector<std::pair<std::string, py::str>> labels{{"before", py::str()}};
  for (const std::string& name : definitions.library_names()) labels.emplace_back("library", to_str(name));
  for (std::uint32_t id = 0; id < definitions.node_type_count(); ++id) {
    labels.emplace_back("node", to_str(readable_node_type(definitions.node_type(id))));
  }
  return labels;
}

template <typename Record>
auto member_str(std::string Record::* member) {
  return [member](const Record& record) { return to_str(record.*member); };
}

// Return all records of one kind, by id.
template <typename Record>
std::vector<Record> records(const Definitions& definitions, std::size_t count,
                            const Record& (Definitions::*get)(std::uint32_t) const) {
  std::vector<Record> result;
  for (std::uint32_t id = 0; id < count; ++id) result.push_back((definitions.*get)(id));
  return result;
}

void define_records(py::module_& module) {
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
  py::class_<Location>(module, "Location")
      .def_readonly("device_type", &Location::device_type)
      .def_readonly("device_index", &Location::device_index)
      .def_property_readonly("stream", [](const Location& self) { return clamped(self.stream); })
      .def_property_readonly("pool",
                             [](const Location& self) { return py::make_tuple(self.pool_first, self.pool_second); });
  py::class_<ThreadRecord>(module, "Thread")
      .def_readonly("native_id", &ThreadRecord::native_id)
      .def_readonly("autograd_id", &ThreadRecord::autograd_id)
      .def_property_readonly("name", member_str(&ThreadRecord::name))
      .def_property_readonly("python_name", member_str(&ThreadRecord::python_name));
  py::class_<DeviceRecord>(module, "Device")
      .def_readonly("device_type", &DeviceRecord::device_type)
      .def_readonly("device_index", &DeviceRecord::device_index)
      .def_readonly("bytes", &DeviceRecord::bytes)
      .def_property_readonly("name", member_str(&DeviceRecord::name))
      .def_property_readonly("uuid", member_str(&DeviceRecord::uuid))
      .def_property_readonly("pci_address", member_str(&DeviceRecord::pci_address));
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

}  // namespace

PYBIND11_MODULE(_replay, module) {
  module.doc() = "Reads traces: decoding, integrity, and the replay.";
  // Users get these as subclasses of TraceError.
  const py::object trace_error = py::module_::import("pytorch_alloctrace.errors").attr("TraceError");
  py::register_exception<FormatError>(module, "FormatError", trace_error);
  py::register_exception<OpenError>(module, "OpenError", trace_error);
  py::register_exception<FinishError>(module, "FinishError", trace_error);
  py::register_exception<CompactionError>(module, "CompactionError", trace_error);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const CompactedError& error) {
      const py::object type = py::module_::import("pytorch_alloctrace.errors").attr("CompactedError");
      PyErr_SetString(type.ptr(), error.what());
    }
  });

  module.attr("MINIMUM_BLOCK") = kMinimumBlock;
  module.attr("SMALL_REQUEST") = kSmallRequest;
  module.attr("SMALL_SEGMENT") = kSmallSegment;
  module.attr("LEAST_SPLIT_SIZE") = kMinSplitSize;
  py::class_<AllocatorSettings>(module, "AllocatorSettings")
      .def(py::init([](const std::string& json) {
             AllocatorSettings settings;
             settings.read(json);
             return settings;
           }),
           py::arg("json") = "")
      .def_readonly("expandable_segments", &AllocatorSettings::expandable_segments)
      .def_property_readonly("max_split_size",
                             [](const AllocatorSettings& settings) -> std::optional<std::uint64_t> {
                               if (settings.max_split_size == UINT64_MAX) return std::nullopt;
                               return settings.max_split_size;
                             })
      .def("segment_size", &AllocatorSettings::segment_size, py::arg("rounded"))
      .def(
          "mapping_unit",
          [](const AllocatorSettings& settings, bool is_large) {
            return clamped(is_large ? settings.large_segment_size : kSmallSegment);
          },
          py::kw_only(), py::arg("is_large"))
      .def_readonly("large_segment_size", &AllocatorSettings::large_segment_size)
      .def("rounded", &AllocatorSettings::rounded, py::arg("bytes"))
      .def("splits", [](const AllocatorSettings& settings, std::uint64_t block, std::uint64_t wanted, bool is_large) {
        return settings.splits(block, wanted, is_large, settings.expandable_segments);
      });
  define_records(module);
  define_replay(module);
  define_states(module);
  define_event_stream(module);
  define_following(module);
  define_plain_pickle(module);
  define_trace_writing(module);
  define_what_if(module);

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
  py::class_<TraceReader, std::shared_ptr<TraceReader>>(module, "TraceReader")
      .def(py::init([](const std::string& path, const std::string& spool_path, const py::object& callback) {
             const Progress progress = with_gil(callback);
             const py::gil_scoped_release unlocked;
             return std::make_shared<TraceReader>(path, spool_path, progress, parse_header_paths);
           }),
           py::arg("path"), py::arg("spool_path") = "", py::arg("progress") = py::none())
      .def_property_readonly("header_json", [](const TraceReader& trace) { return to_str(trace.header_json()); })
      .def_property_readonly("end_json", [](const TraceReader& trace) { return to_str(trace.end_json()); })
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
               result.append(py::make_tuple(row.event, to_str(row.holder), to_str(row.path), to_str(row.filename),
                                            row.line, row.count, row.bytes, to_array(std::move(addresses)),
                                            row.is_garbage));
             }
             return result;
           })
      // 64 bits: the id is the size of an event, which in a corrupt trace may exceed 32 bits.
      .def("string",
           [](const TraceReader& trace, std::uint64_t id) {
             return id > UINT32_MAX ? py::str() : to_str(trace.definitions().string(static_cast<std::uint32_t>(id)));
           })
      .def("source",
           [](const TraceReader& trace, std::uint32_t filename, std::int32_t line) -> py::object {
             const std::string* source = trace.definitions().source(filename, line);
             return source ? py::object(to_str(*source)) : py::object(py::none());
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
               result.append(to_str(readable_node_type(trace.definitions().node_type(id))));
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

}  // namespace alloctrace
