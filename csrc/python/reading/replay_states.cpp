#include "replay_states.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../core/replay/replay_run.h"
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
  add("location", [](const SegmentView& row) { return row.location; });
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
  add("nbytes", [](const Piece& row) { return row.size; });
  add("requested_size", [](const Piece& row) { return row.requested; });
  result["state"] = column<std::uint8_t>(blocks, [](const Piece& row) { return row.state; });
  add_of_used("stack_id", kCount, [](const Piece& row) { return row.stack; });
  result["backward"] = column<std::uint8_t>(
      blocks, [](const Piece& row) { return row.is_of_backward && row.state != PieceState::kFree; });
  add_of_used("thread", kCount, [](const Piece& row) { return row.thread; });
  add_of_used("node_type", kCount, [](const Piece& row) { return row.node_type; });
  add_of_used("birth_seq", kCount, [](const Piece& row) { return row.birth; });
  add_of_used("birth_ns", kTime, [](const Piece& row) { return row.birth_ns; });
  add_of_used("age_ns", kTime, [now_ns](const Piece& row) { return now_ns - row.birth_ns; });
  return result;
}

// What is allocated, oldest first.
py::dict live_columns(const DeviceMemory& device) {
  std::vector<std::pair<std::uint64_t, const Piece*>> by_birth;  // pieces are large: not to be moved about
  device.for_each_allocated([&](const Piece& piece) { by_birth.emplace_back(piece.birth, &piece); });
  std::sort(by_birth.begin(), by_birth.end());
  std::vector<Piece> blocks;
  blocks.reserve(by_birth.size());
  for (const auto& [birth, piece] : by_birth) blocks.push_back(*piece);
  py::dict result;
  result["address"] = column<std::uint64_t>(blocks, [](const Piece& row) { return row.address; });
  result["nbytes"] = column<std::uint64_t>(blocks, [](const Piece& row) { return row.requested; });
  result["stack_id"] = column<std::uint32_t>(blocks, [](const Piece& row) { return row.stack; });
  result["backward"] = column<std::uint8_t>(blocks, [](const Piece& row) { return row.is_of_backward; });
  result["thread"] = column<std::uint32_t>(blocks, [](const Piece& row) { return row.thread; });
  result["node_type"] = column<std::uint16_t>(blocks, [](const Piece& row) { return row.node_type; });
  result["birth_seq"] = column<std::uint64_t>(blocks, [](const Piece& row) { return row.birth; });
  result["birth_ns"] = column<std::int64_t>(blocks, [](const Piece& row) { return row.birth_ns; });
  return result;
}

// A row for each stack that has allocated so far, or holds what the trace began with.
py::dict stack_columns(const DeviceMemory& device) {
  struct Row {
    std::uint32_t stack = 0;
    StackTotals totals;
    std::uint64_t live_blocks = 0, live_bytes = 0, live_backward_bytes = 0;
  };
  std::vector<Row> rows(std::max<std::size_t>(device.stacks().size(), 1));
  for (std::uint32_t stack = 0; stack < device.stacks().size(); ++stack) rows[stack].totals = device.stacks()[stack];
  device.for_each_allocated([&](const Piece& piece) {
    Row& row = rows[piece.stack];  // known: each has allocated, but for 0
    ++row.live_blocks;
    row.live_bytes += piece.requested;
    if (piece.is_of_backward) row.live_backward_bytes += piece.requested;
    row.totals.largest = std::max(row.totals.largest, piece.requested);
  });
  for (std::uint32_t stack = 0; stack < rows.size(); ++stack) rows[stack].stack = stack;
  std::erase_if(rows, [](const Row& row) { return row.totals.allocations == 0 && row.live_blocks == 0; });
  py::dict result;
  result["stack_id"] = column<std::uint32_t>(rows, [](const Row& row) { return row.stack; });
  const auto add = [&]<typename Get>(const char* name, Get get) { result[name] = column<std::uint64_t>(rows, get); };
  add("allocations", [](const Row& row) { return row.totals.allocations; });
  add("bytes", [](const Row& row) { return row.totals.bytes; });
  add("live_bytes", [](const Row& row) { return row.live_bytes; });
  add("live_blocks", [](const Row& row) { return row.live_blocks; });
  add("largest", [](const Row& row) { return row.totals.largest; });
  add("live_backward_bytes", [](const Row& row) { return row.live_backward_bytes; });
  return result;
}

using Wanted = std::optional<std::pair<std::int32_t, std::int32_t>>;

// By device (the wanted one, or all): its type, its index, and what `columns` makes of it.
template <typename Columns>
py::list by_device(const Replay& replay, const Wanted& wanted, Columns columns) {
  py::list result;
  for (const DeviceMemory& device : replay.devices()) {
    if (wanted && *wanted != std::pair(device.device_type(), device.device_index())) continue;
    result.append(py::make_tuple(device.device_type(), device.device_index(), columns(device)));
  }
  return result;
}

py::list segments_of(const Replay& replay, const Wanted& wanted) {
  return by_device(replay, wanted, [](const DeviceMemory& device) {
    std::vector<SegmentView> segments;
    std::vector<Piece> blocks;
    device.list(segments, blocks);
    return segment_columns(segments);
  });
}

py::list blocks_of(const Replay& replay, const Wanted& wanted) {
  return by_device(replay, wanted, [&replay](const DeviceMemory& device) {
    std::vector<SegmentView> segments;
    std::vector<Piece> blocks;
    device.list(segments, blocks);
    return block_columns(segments, blocks, replay.time_ns());
  });
}

py::dict totals_dict(const ReplayRun& run) {
  py::dict result;
  py::list positions, kinds, refusals;
  for (const Position& position : run.positions()) {
    positions.append(py::make_tuple(static_cast<int>(position.kind), position.sequence, position.time_ns,
                                    position.value, position.live_bytes));
  }
  for (const Refusal& refusal : run.refusals()) {
    refusals.append(py::make_tuple(refusal.sequence, refusal.forward_stack));
  }
  for (std::size_t kind = 0; kind < ReplayRun::kKindNumbers; ++kind) kinds.append(run.kind_count(kind));
  std::uint64_t unmatched = 0, missed = 0;
  for (const DeviceMemory& device : run.end().devices()) {
    unmatched += device.history().unmatched_frees;
    missed += device.history().missed_frees;
  }
  result["positions"] = positions;
  result["refusals"] = refusals;
  result["kind_counts"] = kinds;
  result["unmatched_frees"] = unmatched;
  result["missed_frees"] = missed;
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
  result["is_used"] = !memory.is_untouched() || memory.history().unmatched_frees > 0;
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
      .def(
          "segments_before",
          [](ReplayRun& run, std::uint64_t until, const Wanted& wanted) {
            return segments_of(run.state_before(until), wanted);
          },
          py::arg("until"), py::arg("wanted") = py::none())
      .def(
          "blocks_before",
          [](ReplayRun& run, std::uint64_t until, const Wanted& wanted) {
            return blocks_of(run.state_before(until), wanted);
          },
          py::arg("until"), py::arg("wanted") = py::none())
      .def(
          "live_before",
          [](ReplayRun& run, std::uint64_t until, const Wanted& wanted) {
            return by_device(run.state_before(until), wanted, live_columns);
          },
          py::arg("until"), py::arg("wanted") = py::none())
      .def(
          "stacks_before",
          [](ReplayRun& run, std::uint64_t until, const Wanted& wanted) {
            return by_device(run.state_before(until), wanted, stack_columns);
          },
          py::arg("until"), py::arg("wanted") = py::none())
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
      .def("totals", [](const ReplayRun& run) { return totals_dict(run); })
      .def("samples", [](const ReplayRun& run) { return samples_dict(run.samples()); })
      .def("findings", [](const ReplayRun& run) { return findings_dict(run.findings()); });
}

}  // namespace alloctrace
