// pytorch_alloctrace._replay: reading traces. Needs neither torch nor a GPU; columns come out as numpy arrays.
#include <cxxabi.h>
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "../../core/reading/trace_reader.h"
#include "../../core/replay/forward_stacks.h"
#include "../../core/replay/requested_sizes.h"
#include "numpy_columns.h"
#include "replay_states.h"

namespace py = pybind11;

namespace alloctrace {
namespace {

std::string readable_node_type(const NodeType& type) {
  if (!type.mangled) return type.name;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name.c_str(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : type.name;
}

py::dict integrity_dict(const Integrity& integrity) {
  py::dict lost;
  lost["ring_full"] = integrity.counters.lost[static_cast<std::size_t>(LossCause::kRingFull)];
  lost["write_failed"] = integrity.counters.lost[static_cast<std::size_t>(LossCause::kWriteFailed)];
  lost["fault"] = integrity.counters.lost[static_cast<std::size_t>(LossCause::kFault)];
  py::dict result;
  result["state"] = integrity.state();
  result["events"] = integrity.events;
  result["lost"] = integrity.lost();
  result["lost_by_cause"] = lost;
  result["missing_events"] = integrity.missing_events;
  result["corrupt_blocks"] = integrity.corrupt_blocks;
  result["corrupt_bytes"] = integrity.corrupt_bytes;
  result["truncated_bytes"] = integrity.truncated_bytes;
  result["recovered"] = integrity.recovered;
  result["uncommitted"] = integrity.uncommitted;
  result["ended"] = integrity.ended;
  result["spool_read"] = integrity.spool_read;
  result["empty_allocations"] = integrity.counters.empty_allocations;
  result["reentered"] = integrity.counters.reentered;
  result["unknown_stacks"] = integrity.counters.unknown_stacks;
  return result;
}

// Walks through the events of a trace once, filling in the sizes of frees that were not told, and what in forward
// caused the allocations of backward.
class EventStream {
 public:
  // kinds: numbers of the wanted ones; none: all. from_start: what is filled in may stand in any event before `first`;
  // without, it is only known of what is near.
  EventStream(std::shared_ptr<const TraceReader> trace, std::uint64_t first, std::uint64_t end,
              const std::vector<std::uint8_t>& kinds, bool from_start)
      : trace_(std::move(trace)),
        sizes_(trace_->definitions()),
        forward_(trace_->definitions()),
        first_(first),
        end_(end) {
    if (kinds.empty()) is_wanted_.fill(true);
    for (const std::uint8_t kind : kinds) is_wanted_[kind] = true;
    const std::vector<Chunk>& chunks = trace_->chunks();
    while (!from_start && chunk_ + 1 < chunks.size() && chunks[chunk_ + 1].first_sequence <= first_) ++chunk_;
  }

  // The next events, at least `wanted` while there are so many (whole blocks), or what was found among some millions:
  // the caller takes notice of Ctrl-C in between. None at the end.
  py::object next(std::size_t wanted) {
    Columns columns;
    {
      const py::gil_scoped_release unlocked;
      std::size_t looked_at = 0;
      while (columns.sequence.size() < wanted && looked_at < kMostLookedAt && chunk_ < trace_->chunks().size()) {
        looked_at += trace_->chunks()[chunk_].event_count;
        take(columns, trace_->chunks()[chunk_++]);
      }
    }
    if (columns.sequence.empty() && chunk_ >= trace_->chunks().size()) return py::none();
    py::dict result;
    result["seq"] = to_array(std::move(columns.sequence));
    result["time_ns"] = to_array(std::move(columns.time_ns));
    result["forward_stack_id"] = to_array(std::move(columns.forward_stack));
    const std::vector<Event>& events = columns.events;
    result["kind"] = column<std::uint8_t>(events, [](const Event& event) { return event.kind; });
    result["location"] = column<std::uint32_t>(events, [](const Event& event) { return event.location; });
    result["address"] = column<std::uint64_t>(events, [](const Event& event) { return event.address; });
    result["nbytes"] = column<std::uint64_t>(events, [](const Event& event) { return event.size; });
    result["thread"] = column<std::uint32_t>(events, [](const Event& event) { return event.thread; });
    result["stack_id"] = column<std::uint32_t>(events, [](const Event& event) { return event.stack; });
    result["autograd_seq"] = column<std::uint64_t>(events, [](const Event& event) { return event.sequence; });
    result["node_seq"] = column<std::uint64_t>(events, [](const Event& event) { return event.node_sequence; });
    result["node_thread"] = column<std::uint32_t>(events, [](const Event& event) { return event.node_thread; });
    result["node_type"] = column<std::uint16_t>(events, [](const Event& event) { return event.node_type; });
    return result;
  }

 private:
  static constexpr std::size_t kMostLookedAt = 4'000'000;
  struct Columns {
    std::vector<std::uint64_t> sequence;
    std::vector<std::int64_t> time_ns;
    std::vector<Event> events;
    std::vector<std::uint32_t> forward_stack;
  };

  void take(Columns& columns, const Chunk& chunk) {
    if (chunk.first_sequence >= end_) {
      chunk_ = trace_->chunks().size();
      return;
    }
    try {
      trace_->decode(chunk, decoded_);
    } catch (const DecodeError&) {
      return;  // its checksum held, so a faulty writer made it; the rest is still good
    }
    std::uint64_t sequence = chunk.first_sequence;
    const ChunkClock clock = trace_->clock_of(chunk);
    for (Event& event : decoded_) {
      const std::uint32_t forward_stack = event.kind == EventKind::kAlloc ? forward_.take(event) : 0;
      sizes_.fill_in(event);
      if (sequence >= first_ && sequence < end_ && is_wanted_[static_cast<std::size_t>(event.kind)]) {
        columns.sequence.push_back(sequence);
        columns.time_ns.push_back(clock.wall_ns(event.time));
        columns.events.push_back(event);
        columns.forward_stack.push_back(forward_stack);
      }
      ++sequence;
    }
  }

  std::shared_ptr<const TraceReader> trace_;
  RequestedSizes sizes_;
  ForwardStacks forward_;
  std::uint64_t first_, end_;
  std::array<bool, 256> is_wanted_{};
  std::size_t chunk_ = 0;
  std::vector<Event> decoded_;
};

// The calling-context tree as columns, by stack id; entry 0 is "no stack".
py::dict stack_table(const TraceReader& trace) {
  const Definitions& definitions = trace.definitions();
  const std::size_t count = std::max<std::size_t>(definitions.frame_count(), 1);
  std::vector<std::uint32_t> parent(count), name(count), qualified_name(count), filename(count);
  std::vector<std::int32_t> line(count);
  for (std::uint32_t id = 1; id < count; ++id) {
    const FrameRecord& frame = definitions.frame(id);
    const Code& code = definitions.code(frame.code);
    parent[id] = frame.parent;
    name[id] = code.name;
    qualified_name[id] = code.qualified_name;
    filename[id] = code.filename;
    line[id] = definitions.line(id);
  }
  py::dict result;
  result["parent"] = to_array(std::move(parent));
  result["name"] = to_array(std::move(name));
  result["qualified_name"] = to_array(std::move(qualified_name));
  result["filename"] = to_array(std::move(filename));
  result["line"] = to_array(std::move(line));
  return result;
}

py::str text(const std::string& bytes) {
  // File names need not be UTF-8, and a damaged trace may hold anything: never an exception for a name.
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

}  // namespace

PYBIND11_MODULE(_replay, module) {
  module.doc() = "Reads traces: decoding, integrity, and the replay.";
  // What a user meets as a TraceError, whichever call it comes from.
  const py::object trace_error = py::module_::import("pytorch_alloctrace.errors").attr("TraceError");
  py::register_exception<FormatError>(module, "FormatError", trace_error);
  py::register_exception<OpenError>(module, "OpenError", trace_error);

  define_replay(module);
  py::class_<EventStream>(module, "EventStream").def("next", &EventStream::next, py::arg("wanted"));

  py::class_<TraceReader, std::shared_ptr<TraceReader>>(module, "TraceReader")
      .def(py::init([](const std::string& path, const std::string& spool_path, const py::object& callback) {
             const Progress progress = with_gil(callback);
             const py::gil_scoped_release unlocked;
             return std::make_shared<TraceReader>(path, spool_path, progress);
           }),
           py::arg("path"), py::arg("spool_path") = "", py::arg("progress") = py::none())
      .def_property_readonly("header_json", [](const TraceReader& trace) { return text(trace.header_json()); })
      .def_property_readonly("end_json", [](const TraceReader& trace) { return text(trace.end_json()); })
      .def_property_readonly("file_bytes", &TraceReader::file_bytes)
      .def_property_readonly("begin_ns", &TraceReader::begin_ns)
      .def_property_readonly("end_ns", &TraceReader::end_ns)
      .def("integrity", [](const TraceReader& trace) { return integrity_dict(trace.integrity()); })
      .def("stack_table", &stack_table)
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
             py::list result;
             for (const auto& [key, device] : trace.definitions().devices()) {
               result.append(py::make_tuple(device.device_type, device.device_index, device.bytes, text(device.name),
                                            text(device.uuid), text(device.pci_address)));
             }
             return result;
           })
      .def("locations",
           [](const TraceReader& trace) {
             py::list result;
             for (std::uint32_t id = 0; id < trace.definitions().location_count(); ++id) {
               const Location& location = trace.definitions().location(id);
               result.append(py::make_tuple(location.device_type, location.device_index, location.stream,
                                            location.pool_first, location.pool_second));
             }
             return result;
           })
      .def("threads",
           [](const TraceReader& trace) {
             py::list result;
             for (std::uint32_t id = 0; id < trace.definitions().thread_count(); ++id) {
               const ThreadRecord& thread = trace.definitions().thread(id);
               result.append(
                   py::make_tuple(thread.native_id, thread.autograd_id, text(thread.name), text(thread.python_name)));
             }
             return result;
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
          "stream",
          [](const std::shared_ptr<TraceReader>& trace, std::uint64_t first, std::uint64_t end,
             const std::vector<std::uint8_t>& kinds,
             bool from_start) { return EventStream(trace, first, end, kinds, from_start); },
          py::arg("first") = 0, py::arg("end") = UINT64_MAX, py::arg("kinds") = std::vector<std::uint8_t>(),
          py::arg("from_start") = true);
}

}  // namespace alloctrace
