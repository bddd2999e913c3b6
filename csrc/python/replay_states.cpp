#include "replay_states.h"

#include <pybind11/functional.h>

#include <memory>
#include <string>
#include <vector>

#include "../core/replay_run.h"
#include "numpy_columns.h"

namespace alloctrace {
namespace {

py::dict segment_columns(const std::vector<SegmentView>& segments) {
  py::dict result;
  const auto add = [&]<typename Get>(const char* name, Get get) {
    result[name] = column<std::uint64_t>(segments, get);
  };
  add("address", [](const SegmentView& row) { return row.address; });
  add("total_size", [](const SegmentView& row) { return row.total_size; });
  add("allocated_size", [](const SegmentView& row) { return row.allocated_size; });
  add("active_size", [](const SegmentView& row) { return row.active_size; });
  add("requested_size", [](const SegmentView& row) { return row.requested_size; });
  add("place", [](const SegmentView& row) { return row.place; });
  add("is_large", [](const SegmentView& row) { return row.is_large; });
  add("is_expandable", [](const SegmentView& row) { return row.is_expandable; });
  return result;
}

// What only blocks in use have (stack to age_ns) is 0 for the others.
py::dict block_columns(const std::vector<SegmentView>& segments, const std::vector<Piece>& blocks,
                       std::int64_t now_ns) {
  std::vector<std::uint64_t> segment_of(blocks.size(), 0);
  for (const SegmentView& segment : segments) {
    for (std::size_t i = 0; i < segment.block_count; ++i) segment_of[segment.first_block + i] = segment.address;
  }
  py::dict result;
  result["segment"] = to_array(std::move(segment_of));
  const auto add = [&]<typename Get>(const char* name, Get get) { result[name] = column<std::uint64_t>(blocks, get); };
  const auto add_of_used = [&]<typename Value, typename Get>(const char* name, Value, Get get) {
    const auto value = [get](const Piece& row) { return row.state == PieceState::kFree ? Value{} : Value(get(row)); };
    result[name] = column<Value>(blocks, value);
  };
  constexpr std::uint64_t kCount{};
  constexpr std::int64_t kTime{};
  add("address", [](const Piece& row) { return row.address; });
  add("size", [](const Piece& row) { return row.size; });
  add("requested_size", [](const Piece& row) { return row.requested; });
  result["state"] = column<std::uint8_t>(blocks, [](const Piece& row) { return row.state; });
  add_of_used("stack", kCount, [](const Piece& row) { return row.stack; });
  add_of_used("thread", kCount, [](const Piece& row) { return row.thread; });
  add_of_used("birth_seq", kCount, [](const Piece& row) { return row.birth; });
  add_of_used("birth_ns", kTime, [](const Piece& row) { return row.birth_ns; });
  add_of_used("age_ns", kTime, [now_ns](const Piece& row) { return now_ns - row.birth_ns; });
  return result;
}

// By device: its type, its index, and its segments or its blocks.
py::list memory_list(const Replay& replay, bool of_blocks) {
  py::list result;
  for (const DeviceMemory& device : replay.devices()) {
    std::vector<SegmentView> segments;
    std::vector<Piece> blocks;
    device.list(segments, blocks);
    result.append(
        py::make_tuple(device.device_type(), device.device_index(),
                       of_blocks ? block_columns(segments, blocks, replay.time_ns()) : segment_columns(segments)));
  }
  return result;
}

py::dict timeline_dict(const DeviceMemory& memory, const MemoryTimeline& timeline) {
  constexpr const char* kNames[kMeasureCount] = {"requested",  "allocated", "active",       "reserved",
                                                 "releasable", "stranded",  "largest_free", "blocks"};
  const std::vector<MemoryTimeline::Interval>& rows = timeline.intervals();
  using Interval = MemoryTimeline::Interval;
  py::dict result;
  result["device_type"] = memory.device_type();
  result["device_index"] = memory.device_index();
  result["tells_segments"] = memory.tells_segments();
  const auto peak = [](const MemoryTimeline::Peak& of) { return py::make_tuple(of.bytes, of.sequence, of.time_ns); };
  result["allocated_peak"] = peak(timeline.allocated_peak());
  result["reserved_peak"] = peak(timeline.reserved_peak());
  py::dict columns;
  for (std::size_t i = 0; i < kMeasureCount; ++i) {
    const std::string name = kNames[i];
    columns[name.c_str()] = column<std::uint64_t>(rows, [i](const Interval& row) { return row.last[i]; });
    columns[(name + "_min").c_str()] = column<std::uint64_t>(rows, [i](const Interval& row) { return row.lowest[i]; });
    columns[(name + "_max").c_str()] = column<std::uint64_t>(rows, [i](const Interval& row) { return row.highest[i]; });
  }
  columns["seq"] = column<std::uint64_t>(rows, [](const Interval& row) { return row.highest_sequence; });
  result["columns"] = columns;
  return result;
}

py::dict samples_dict(const std::vector<MemorySample>& samples) {
  py::dict result;
  const auto add = [&]<typename Get>(const char* name, Get get) { result[name] = column<std::uint64_t>(samples, get); };
  add("seq", [](const MemorySample& row) { return row.sequence; });
  result["time_ns"] = column<std::int64_t>(samples, [](const MemorySample& row) { return row.time_ns; });
  result["device_type"] = column<std::int32_t>(samples, [](const MemorySample& row) { return row.device_type; });
  result["device_index"] = column<std::int32_t>(samples, [](const MemorySample& row) { return row.device_index; });
  add("used", [](const MemorySample& row) { return row.used; });
  add("total", [](const MemorySample& row) { return row.total; });
  add("by_this_process", [](const MemorySample& row) { return row.by_this_process; });
  add("by_others", [](const MemorySample& row) { return row.by_others; });
  add("reserved", [](const MemorySample& row) { return row.reserved; });
  return result;
}

py::list items(const std::vector<ReplayFindings::Item>& found) {
  py::list result;
  for (const ReplayFindings::Item& item : found) result.append(py::make_tuple(item.sequence, item.device, item.text));
  return result;
}

py::dict findings_dict(const ReplayFindings& findings) {
  py::dict result;
  result["states"] = findings.states;
  result["agreeing"] = findings.agreeing;
  result["resumed"] = findings.resumed;
  result["void_states"] = findings.void_states;
  result["contradictions"] = findings.contradictions;
  result["after_loss"] = findings.after_loss;
  result["differences"] = items(findings.differences);
  result["contradiction_list"] = items(findings.kept_contradictions);
  return result;
}

}  // namespace

void define_replay(py::module_& module) {
  py::class_<ReplayRun>(module, "Replay")
      .def(py::init([](std::shared_ptr<TraceReader> trace, std::size_t points, const py::object& callback) {
             const Progress progress = with_gil(callback);
             const py::gil_scoped_release unlocked;
             return std::make_unique<ReplayRun>(std::move(trace), points, progress);
           }),
           py::arg("trace"), py::arg("points"), py::arg("progress") = py::none())
      // Under the GIL: the state is one that the next call changes.
      .def("time_before", [](ReplayRun& run, std::uint64_t until) { return run.state_before(until).time_ns(); })
      .def("segments_before",
           [](ReplayRun& run, std::uint64_t until) { return memory_list(run.state_before(until), false); })
      .def("blocks_before",
           [](ReplayRun& run, std::uint64_t until) { return memory_list(run.state_before(until), true); })
      .def("sequence_after",
           [](const ReplayRun& run, std::int64_t time_ns) {
             const py::gil_scoped_release unlocked;
             return run.sequence_after(time_ns);
           })
      .def("timelines",
           [](const ReplayRun& run) {
             py::list result;
             for (std::size_t index = 0; index < run.timelines().size(); ++index) {
               result.append(timeline_dict(run.end().devices()[index], run.timelines()[index]));
             }
             return result;
           })
      .def("samples", [](const ReplayRun& run) { return samples_dict(run.samples()); })
      .def("findings", [](const ReplayRun& run) { return findings_dict(run.findings()); });
}

}  // namespace alloctrace
