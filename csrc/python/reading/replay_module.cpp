// pytorch_alloctrace._replay: reading traces. Needs neither torch nor a GPU; columns come out as numpy arrays.
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

#include "../../core/compaction/folded_file.h"
#include "../../core/reading/finish_trace.h"
#include "../../core/reading/trace_reader.h"
#include "../../core/replay/allocator_rules.h"
#include "../../core/replay/replay_run.h"
#include "../../core/replay/same_stacks.h"
#include "event_stream.h"
#include "following.h"
#include "node_names.h"
#include "numpy_columns.h"
#include "plain_pickle.h"
#include "replay_results.h"
#include "replay_states.h"
#include "trace_writing.h"
#include "what_if.h"

namespace py = pybind11;

namespace alloctrace {
namespace {

// The calling-context tree as columns, by stack id; entry 0 is "no stack". same: the first stack of the same frames,
// the modules aside.
py::dict stack_table(const TraceReader& trace) {
  const Definitions& definitions = trace.definitions();
  const std::size_t count = std::max<std::size_t>(definitions.frame_count(), 1);
  std::vector<std::uint32_t> parent(count), name(count), qualified_name(count), filename(count);
  std::vector<std::uint32_t> module(count), same(count);
  std::vector<std::int32_t> line;
  {
    const py::gil_scoped_release unlocked;  // a head start meets the imports of others here
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
      same[id] = same_stacks.first_equal(id);
    }
  }
  py::dict result;
  result["parent"] = to_array(std::move(parent));
  result["name"] = to_array(std::move(name));
  result["qualified_name"] = to_array(std::move(qualified_name));
  result["filename"] = to_array(std::move(filename));
  result["line"] = to_array(std::move(line));
  result["module"] = to_array(std::move(module));
  result["same"] = to_array(std::move(same));
  return result;
}

py::str text(const std::string& bytes) {
  // File names need not be UTF-8, and a damaged trace may hold anything: never an exception for a name.
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

// Class, owner (0: none) and name ("": unknown) of each module, by id; entry 0 is none.
std::vector<std::tuple<py::str, std::uint32_t, py::str>> modules(const TraceReader& trace) {
  const Definitions& definitions = trace.definitions();
  std::vector<std::tuple<py::str, std::uint32_t, py::str>> all;
  for (std::uint32_t id = 0; id < definitions.module_count(); ++id) {
    const ModuleRecord& module = definitions.module(id);
    all.emplace_back(text(definitions.string(module.class_name)), module.owner, text(definitions.string(module.name)));
  }
  return all;
}

// What the stacks after those of frames stand for, in order (see Definitions): "before", "library" or "node", and a
// name.
std::vector<std::pair<std::string, py::str>> stack_labels(const TraceReader& trace) {
  const Definitions& definitions = trace.definitions();
  std::vector<std::pair<std::string, py::str>> labels{{"before", py::str()}};
  for (const std::string& name : definitions.library_names()) labels.emplace_back("library", text(name));
  for (std::uint32_t id = 0; id < definitions.node_type_count(); ++id) {
    labels.emplace_back("node", text(readable_node_type(definitions.node_type(id))));
  }
  return labels;
}

template <typename Record>
auto text_of(std::string Record::* member) {
  return [member](const Record& record) { return text(record.*member); };
}

// The records of one kind by their ids, from 0 on.
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
                               const auto of = [&](LossCause cause) {
                                 return integrity.counters.lost[static_cast<std::size_t>(cause)];
                               };
                               py::dict result;
                               result["ring_full"] = of(LossCause::kRingFull);
                               result["write_failed"] = of(LossCause::kWriteFailed);
                               result["fault"] = of(LossCause::kFault);
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
      .def_property_readonly("empty_allocations", [](const Integrity& of) { return of.counters.empty_allocations; })
      .def_property_readonly("reentered", [](const Integrity& of) { return of.counters.reentered; })
      .def_property_readonly("unknown_stacks", [](const Integrity& of) { return of.counters.unknown_stacks; });
  py::class_<Location>(module, "Location")
      .def_readonly("device_type", &Location::device_type)
      .def_readonly("device_index", &Location::device_index)
      .def_property_readonly("stream", [](const Location& of) { return clamped(of.stream); })
      .def_property_readonly("pool", [](const Location& of) { return py::make_tuple(of.pool_first, of.pool_second); });
  py::class_<ThreadRecord>(module, "Thread")
      .def_readonly("native_id", &ThreadRecord::native_id)
      .def_readonly("autograd_id", &ThreadRecord::autograd_id)
      .def_property_readonly("name", text_of(&ThreadRecord::name))
      .def_property_readonly("python_name", text_of(&ThreadRecord::python_name));
  py::class_<DeviceRecord>(module, "Device")
      .def_readonly("device_type", &DeviceRecord::device_type)
      .def_readonly("device_index", &DeviceRecord::device_index)
      .def_readonly("bytes", &DeviceRecord::bytes)
      .def_property_readonly("name", text_of(&DeviceRecord::name))
      .def_property_readonly("uuid", text_of(&DeviceRecord::uuid))
      .def_property_readonly("pci_address", text_of(&DeviceRecord::pci_address));
}

// The header names trace and spool as Python's json and os.fsencode write them. In a damaged header they have no paths.
TraceReader::RecordedPaths paths_of_header(const std::string& json) {
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
  // What a user meets as a TraceError, whichever call it comes from.
  const py::object trace_error = py::module_::import("pytorch_alloctrace.errors").attr("TraceError");
  py::register_exception<FormatError>(module, "FormatError", trace_error);
  py::register_exception<OpenError>(module, "OpenError", trace_error);
  py::register_exception<FinishError>(module, "FinishError", trace_error);
  py::register_exception<CompactionError>(module, "FoldingError", trace_error);
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
      .def_property_readonly("spool", [](const FinishedTrace& done) { return py::bytes(done.spool_path); })
      .def_property_readonly("recorded_path", [](const FinishedTrace& done) { return py::bytes(done.recorded_path); })
      .def_readonly("events", &FinishedTrace::events)
      .def_readonly("uncommitted", &FinishedTrace::uncommitted);
  module.def(
      "finish_trace",
      [](const std::string& path, const std::string& spool_path, bool force) {
        const py::gil_scoped_release unlocked;
        return finish_trace(path, spool_path, paths_of_header, force);
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
             return std::make_shared<TraceReader>(path, spool_path, progress, paths_of_header);
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
             for (const HolderRecord& one : trace.definitions().holders()) {
               std::vector<std::int64_t> addresses(one.addresses.begin(), one.addresses.end());
               result.append(py::make_tuple(one.event, text(one.holder), text(one.path), text(one.filename), one.line,
                                            one.count, one.bytes, to_array(std::move(addresses)), one.is_garbage));
             }
             return result;
           })
      // 64 bits: the id of a name comes from the size of an event, which in a damaged trace may be anything.
      .def("string",
           [](const TraceReader& trace, std::uint64_t id) {
             return id > UINT32_MAX ? py::str() : text(trace.definitions().string(static_cast<std::uint32_t>(id)));
           })
      .def("source",
           [](const TraceReader& trace, std::uint32_t filename, std::int32_t line) -> py::object {
             const std::string* found = trace.definitions().source(filename, line);
             return found ? py::object(text(*found)) : py::object(py::none());
           })
      .def("devices",
           [](const TraceReader& trace) {
             std::vector<DeviceRecord> result;
             for (const auto& [key, device] : trace.definitions().devices()) result.push_back(device);
             return result;
           })
      .def("locations",
           [](const TraceReader& trace) {
             const Definitions& all = trace.definitions();
             return records(all, all.location_count(), &Definitions::location);
           })
      .def("threads",
           [](const TraceReader& trace) {
             const Definitions& all = trace.definitions();
             return records(all, all.thread_count(), &Definitions::thread);
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

}  // namespace alloctrace
