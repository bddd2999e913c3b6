// pytorch_alloctrace._replay: reading traces. Needs neither torch nor a GPU; columns come out as numpy arrays.
#include <cxxabi.h>
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "../core/account.h"
#include "../core/trace_reader.h"
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

// Walks through the events of a trace once, from the beginning, filling in the sizes of frees that were not told.
class EventStream {
 public:
  EventStream(std::shared_ptr<const TraceReader> trace, std::uint64_t first, std::uint64_t end)
      : trace_(std::move(trace)), ledger_(trace_->definitions()), first_(first), end_(end) {}

  // The next events, at least `wanted` while there are so many (whole blocks); None at the end.
  py::object next(std::size_t wanted) {
    Columns columns;
    {
      const py::gil_scoped_release unlocked;
      while (columns.sequence.size() < wanted && chunk_ < trace_->chunks().size())
        take(columns, trace_->chunks()[chunk_++]);
    }
    if (columns.sequence.empty()) return py::none();
    py::dict result;
    result["seq"] = to_array(std::move(columns.sequence));
    result["time_ns"] = to_array(std::move(columns.time_ns));
    const std::vector<Event>& events = columns.events;
    result["kind"] = column<std::uint8_t>(events, [](const Event& event) { return event.kind; });
    result["place"] = column<std::uint32_t>(events, [](const Event& event) { return event.place; });
    result["address"] = column<std::uint64_t>(events, [](const Event& event) { return event.address; });
    result["size"] = column<std::uint64_t>(events, [](const Event& event) { return event.size; });
    result["thread"] = column<std::uint32_t>(events, [](const Event& event) { return event.thread; });
    result["stack"] = column<std::uint32_t>(events, [](const Event& event) { return event.stack; });
    result["autograd_seq"] = column<std::uint64_t>(events, [](const Event& event) { return event.sequence; });
    result["node_seq"] = column<std::uint64_t>(events, [](const Event& event) { return event.node_sequence; });
    result["node_thread"] = column<std::uint32_t>(events, [](const Event& event) { return event.node_thread; });
    result["node_type"] = column<std::uint16_t>(events, [](const Event& event) { return event.node_type; });
    return result;
  }

 private:
  struct Columns {
    std::vector<std::uint64_t> sequence;
    std::vector<std::int64_t> time_ns;
    std::vector<Event> events;
  };

  void take(Columns& columns, const Chunk& chunk) {
    if (chunk.first_sequence >= end_) {
      chunk_ = trace_->chunks().size();
      return;
    }
    try {
      trace_->decode(chunk, decoded_);
    } catch (const DecodeError&) {
      return;  // as in Account: the rest is still good
    }
    std::uint64_t sequence = chunk.first_sequence;
    const ChunkClock clock = trace_->clock_of(chunk);
    for (Event& event : decoded_) {
      const std::int64_t time_ns = clock.wall_ns(event.time);
      ledger_.apply(event, sequence, time_ns);
      if (sequence >= first_ && sequence < end_) {
        columns.sequence.push_back(sequence);
        columns.time_ns.push_back(time_ns);
        columns.events.push_back(event);
      }
      ++sequence;
    }
  }

  std::shared_ptr<const TraceReader> trace_;
  Ledger ledger_;
  std::uint64_t first_, end_;
  std::size_t chunk_ = 0;
  std::vector<Event> decoded_;
};

py::dict device_dict(const DeviceLedger& device) {
  py::dict result;
  result["device_type"] = device.device_type;
  result["device_index"] = device.device_index;
  result["live_bytes"] = device.live_bytes;

  std::vector<std::uint32_t> ids;
  std::vector<StackTotals> totals;
  for (std::uint32_t stack = 0; stack < device.stacks.size(); ++stack) {
    if (device.stacks[stack].allocations == 0) continue;
    ids.push_back(stack);
    totals.push_back(device.stacks[stack]);
  }
  py::dict stacks;
  stacks["stack"] = to_array(std::move(ids));
  stacks["allocations"] = column<std::uint64_t>(totals, [](const StackTotals& row) { return row.allocations; });
  stacks["bytes"] = column<std::uint64_t>(totals, [](const StackTotals& row) { return row.bytes; });
  stacks["live_blocks"] = column<std::uint64_t>(totals, [](const StackTotals& row) { return row.live_blocks; });
  stacks["live_bytes"] = column<std::uint64_t>(totals, [](const StackTotals& row) { return row.live_bytes; });
  stacks["largest"] = column<std::uint64_t>(totals, [](const StackTotals& row) { return row.largest; });
  stacks["live_backward_bytes"] =
      column<std::uint64_t>(totals, [](const StackTotals& row) { return row.live_backward_bytes; });
  result["stacks"] = stacks;

  std::vector<std::pair<std::uint64_t, LiveBlock>> blocks;
  blocks.reserve(device.live.size());
  device.live.for_each([&](std::uint64_t address, const LiveBlock& block) { blocks.emplace_back(address, block); });
  std::sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.second.birth < b.second.birth; });
  py::dict live;
  live["address"] = column<std::uint64_t>(blocks, [](const auto& row) { return row.first; });
  live["size"] = column<std::uint64_t>(blocks, [](const auto& row) { return row.second.size; });
  live["birth_seq"] = column<std::uint64_t>(blocks, [](const auto& row) { return row.second.birth; });
  live["birth_ns"] = column<std::int64_t>(blocks, [](const auto& row) { return row.second.birth_ns; });
  live["stack"] = column<std::uint32_t>(blocks, [](const auto& row) { return row.second.stack; });
  live["backward"] = column<std::uint8_t>(blocks, [](const auto& row) { return row.second.backward; });
  live["thread"] = column<std::uint32_t>(blocks, [](const auto& row) { return row.second.thread; });
  live["place"] = column<std::uint32_t>(blocks, [](const auto& row) { return row.second.place; });
  result["live"] = live;
  return result;
}

py::dict account(const std::shared_ptr<const TraceReader>& trace, std::uint64_t until, const py::object& callback) {
  const Progress progress = with_gil(callback);
  const auto taken = [&] {
    const py::gil_scoped_release unlocked;
    return std::make_unique<const Account>(*trace, until, progress);
  }();
  py::dict result;
  py::list devices;
  for (const DeviceLedger& device : taken->devices()) devices.append(device_dict(device));
  result["devices"] = devices;
  py::list positions;
  for (const Position& position : taken->positions()) {
    positions.append(py::make_tuple(static_cast<int>(position.kind), position.sequence, position.time_ns,
                                    position.value, position.live_bytes));
  }
  result["positions"] = positions;
  py::list kinds;
  for (std::size_t kind = 0; kind < Account::kKindNumbers; ++kind) kinds.append(taken->kind_count(kind));
  result["kind_counts"] = kinds;
  result["unmatched_frees"] = taken->ledger().unmatched_frees();
  result["missed_frees"] = taken->ledger().missed_frees();
  result["undecodable_chunks"] = taken->undecodable_chunks();
  return result;
}

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
  module.doc() = "Reads traces: decoding, integrity, live blocks and totals.";
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
      .def("places",
           [](const TraceReader& trace) {
             py::list result;
             for (std::uint32_t id = 0; id < trace.definitions().place_count(); ++id) {
               const Place& place = trace.definitions().place(id);
               result.append(py::make_tuple(place.device_type, place.device_index, place.stream, place.pool_first,
                                            place.pool_second));
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
          [](const std::shared_ptr<TraceReader>& trace, std::uint64_t first, std::uint64_t end) {
            return EventStream(trace, first, end);
          },
          py::arg("first") = 0, py::arg("end") = UINT64_MAX)
      .def(
          "account",
          [](const std::shared_ptr<TraceReader>& trace, std::uint64_t until, const py::object& progress) {
            return account(trace, until, progress);
          },
          py::arg("until") = UINT64_MAX, py::arg("progress") = py::none());
}

}  // namespace alloctrace
