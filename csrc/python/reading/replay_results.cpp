#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../core/replay/replay_run.h"
#include "bindings.h"
#include "event_stream.h"
#include "numpy_columns.h"

namespace alloctrace {
namespace {

// Peaks and totals of one device over time; for intervals see interval_columns().
struct DeviceTimeline {
  std::int32_t device_type, device_index;
  bool reports_segments, is_used;
  MemoryTimeline::Peak allocated_peak, reserved_peak;
  std::uint64_t max_requested;
};

DeviceTimeline device_timeline(const DeviceMemory& memory, const MemoryTimeline& timeline) {
  return {memory.device_type(),           memory.device_index(),
          memory.reports_segments(),      !memory.is_untouched() || memory.history().unmatched_frees > 0,
          timeline.allocated_peak(),      timeline.reserved_peak(),
          timeline.maximum_of(kRequested)};
}

using Lines = py::array_t<std::uint32_t, py::array::c_style | py::array::forcecast>;
using Integers = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

// Return one row for each range of intervals [begin, end).
py::dict interval_columns(const MemoryTimeline& timeline, const Integers& begins, const Integers& ends) {
  constexpr const char* kNames[kMeasureCount] = {
      "requested_bytes",  "allocated_bytes", "active_bytes",       "reserved_bytes",
      "releasable_bytes", "stranded_bytes",  "largest_free_bytes", "blocks"};
  using Interval = MemoryTimeline::Interval;
  if (begins.size() != ends.size()) throw py::value_error("begins and ends differ in length");
  std::vector<Interval> rows;
  rows.reserve(static_cast<std::size_t>(begins.size()));
  for (py::ssize_t row = 0; row < begins.size(); ++row) {
    rows.push_back(
        timeline.between(static_cast<std::size_t>(begins.data()[row]), static_cast<std::size_t>(ends.data()[row])));
  }
  py::dict columns;
  for (std::size_t i = 0; i < kMeasureCount; ++i) {
    const std::string name = kNames[i];
    columns[name.c_str()] = integers(rows, [i](const Interval& row) { return row.last[i]; });
    columns[(name + "_min").c_str()] = integers(rows, [i](const Interval& row) { return row.lowest[i]; });
    columns[(name + "_max").c_str()] = integers(rows, [i](const Interval& row) { return row.highest[i]; });
  }
  columns["seq"] = integers(rows, [](const Interval& row) { return row.highest_sequence; });
  return columns;
}

// Return memory samples; -1: unknown bytes.
py::dict sample_columns(const std::vector<MemorySample>& samples) {
  py::dict result;
  const auto add = [&]<typename Get>(const char* name, Get get) { result[name] = integers(samples, get); };
  const auto add_bytes = [&](const char* name, std::uint64_t MemorySample::* bytes) {
    result[name] = integers(samples, [bytes](const MemorySample& row) {
      return row.*bytes == kUnknownBytes ? std::int64_t{-1} : clamped(row.*bytes);
    });
  };
  add("seq", [](const MemorySample& row) { return row.sequence; });
  add("time_ns", [](const MemorySample& row) { return row.time_ns; });
  add("device_type", [](const MemorySample& row) { return row.device_type; });
  add("device_index", [](const MemorySample& row) { return row.device_index; });
  add_bytes("used_bytes", &MemorySample::used);
  add_bytes("total_bytes", &MemorySample::total);
  add_bytes("this_process_bytes", &MemorySample::by_this_process);
  add_bytes("other_processes_bytes", &MemorySample::by_others);
  add_bytes("reserved_bytes", &MemorySample::reserved);
  return result;
}

// Return one row for each name that the program gave to a block.
py::dict named_columns(const std::vector<NamedBlock>& blocks) {
  py::dict result;
  const auto add = [&]<typename Get>(const char* name, Get get) { result[name] = integers(blocks, get); };
  add("seq", [](const NamedBlock& row) { return row.sequence; });
  add("device", [](const NamedBlock& row) { return row.device; });
  result["address"] = addresses(blocks, [](const NamedBlock& row) { return row.address; });
  add("requested_bytes", [](const NamedBlock& row) { return row.requested; });
  add("alloc_seq", [](const NamedBlock& row) { return row.alloc_sequence; });
  add("stack_id", [](const NamedBlock& row) { return row.stack; });
  add("name", [](const NamedBlock& row) { return row.name; });
  add("module", [](const NamedBlock& row) { return row.module; });
  result["role"] = column<std::int8_t>(blocks, [](const NamedBlock& row) { return row.role; });
  result["older"] = column<bool>(blocks, [](const NamedBlock& row) { return row.is_older; });
  return result;
}

// Return, by device, bytes of each interval and group, one interval after the other; see GroupTimeline.
std::vector<py::dict> group_timeline_columns(const ReplayRun& run, std::size_t points, std::int64_t begin_ns,
                                             std::int64_t end_ns, std::vector<std::vector<std::uint32_t>> site_of_stack,
                                             std::size_t site_count, bool with_extremes, const py::object& callback) {
  const Progress progress = with_gil(callback);
  GroupOptions options;
  options.points = std::max<std::size_t>(points, 1);
  options.begin_ns = begin_ns;
  options.end_ns = end_ns;
  options.site_of_stack = std::move(site_of_stack);
  options.site_count = site_count;
  options.with_extremes = with_extremes;
  std::vector<GroupTimeline> timelines;
  {
    const py::gil_scoped_release unlocked;
    timelines = run.group_timelines(std::move(options), progress);
  }
  std::vector<py::dict> result;
  for (const GroupTimeline& timeline : timelines) {
    py::dict& columns = result.emplace_back();
    const auto add = [&](const char* name, const std::vector<std::uint64_t>& values) {
      columns[name] = integers(values, [](std::uint64_t value) { return value; });
    };
    add("last", timeline.last);
    if (!with_extremes) continue;
    add("lowest", timeline.lowest);
    add("highest", timeline.highest);
    add("at_peak", timeline.at_peak);
    add("peak_seq", timeline.peak_sequences);
  }
  return result;
}

// Return, by device, one row for each role number.
std::vector<py::dict> role_allocation_columns(const ReplayRun& run, std::uint64_t first, std::uint64_t until) {
  std::vector<std::array<RoleAllocations, kRoleCount>> by_device;
  {
    const py::gil_scoped_release unlocked;
    by_device = run.role_allocations(first, until);
  }
  std::vector<py::dict> result;
  for (const std::array<RoleAllocations, kRoleCount>& allocations : by_device) {
    const std::vector<RoleAllocations> rows(allocations.begin(), allocations.end());
    py::dict& columns = result.emplace_back();
    columns["allocations"] = integers(rows, [](const RoleAllocations& row) { return row.allocations; });
    columns["total_bytes"] = integers(rows, [](const RoleAllocations& row) { return row.bytes; });
    columns["exact_bytes"] = integers(rows, [](const RoleAllocations& row) { return row.exact_bytes; });
    columns["largest_bytes"] = integers(rows, [](const RoleAllocations& row) { return row.largest; });
  }
  return result;
}

// Return freed blocks by stack, cell of allocation and cell of free. Narrow types: there may be millions of rows.
py::dict freed_columns(const LongLifetimes::FreedGroups& groups) {
  using FreedGroup = LongLifetimes::FreedGroup;
  py::dict result;
  const auto add = [&]<typename Get>(const char* name, Get get) { result[name] = integers(groups, get); };
  result["stack_id"] = column<std::int32_t>(groups, [](const FreedGroup& row) { return row.stack; });
  result["allocated_in"] = column<std::int16_t>(groups, [](const FreedGroup& row) { return row.allocated_in; });
  result["freed_in"] = column<std::int16_t>(groups, [](const FreedGroup& row) { return row.freed_in; });
  add("blocks", [](const FreedGroup& row) { return row.blocks; });
  add("block_bytes", [](const FreedGroup& row) { return row.bytes; });
  return result;
}

py::dict growth_columns(const std::vector<LongLifetimes::Growth>& growths) {
  std::vector<std::pair<std::size_t, std::size_t>> rows;
  for (std::size_t line = 0; line < growths.size(); ++line) {
    for (std::size_t cell = 0; cell < LongLifetimes::kMaxCells; ++cell) {
      if (growths[line].cells[cell]) rows.emplace_back(line, cell);
    }
  }
  py::dict result;
  result["line"] = integers(rows, [](const auto& row) { return row.first; });
  result["cell"] = integers(rows, [](const auto& row) { return row.second; });
  return result;
}

// Return live bytes at each position, summed over `devices`: one column per device would take too much memory.
py::array_t<std::int64_t> bytes_at_positions(const ReplayRun& run, const std::vector<std::size_t>& devices) {
  constexpr std::uint64_t kMaxSum = INT64_MAX;
  return integers(run.positions(), [&](const PositionEvent& event) {
    std::uint64_t sum = 0;  // clamped: a corrupt trace has any numbers
    for (const std::size_t device : devices) {
      if (device < event.live_bytes.size()) sum = std::min(sum + std::min(event.live_bytes[device], kMaxSum), kMaxSum);
    }
    return sum;
  });
}

template <std::uint64_t DeviceHistory::* Member>
std::uint64_t sum_of_devices(const ReplayRun& run) {
  std::uint64_t sum = 0;
  for (const DeviceMemory& device : run.end().devices()) sum += device.history().*Member;
  return sum;
}

void define_long_lifetimes(py::module_& module) {
  py::class_<LongLifetimes>(module, "LongLifetimes")
      .def_property_readonly("begins",
                             [](const LongLifetimes& lives) {
                               return integers(lives.begins(), [](std::uint64_t begin) { return begin; });
                             })
      .def_property_readonly("begins_ns",
                             [](const LongLifetimes& lives) {
                               return integers(lives.begins_ns(), [](std::int64_t time_ns) { return time_ns; });
                             })
      .def_property_readonly("last_ns", &LongLifetimes::last_ns)
      .def_property_readonly("cell_length", &LongLifetimes::cell_length)
      .def_property_readonly("allocations", &LongLifetimes::allocations)
      .def_property_readonly("last_allocation", &LongLifetimes::last_allocation)
      .def_property_readonly("freed_blocks",
                             [](const LongLifetimes& lives) { return freed_columns(lives.freed_groups()); })
      .def_property_readonly("growths", [](const LongLifetimes& lives) { return growth_columns(lives.growths()); });
}

void define_loop(py::module_& module) {
  py::class_<Loops::Loop>(module, "Loop")
      .def_readonly("caller", &Loops::Loop::caller)
      .def_readonly("function", &Loops::Loop::function)
      .def_readonly("depth", &Loops::Loop::depth)
      .def_readonly("rounds", &Loops::Loop::rounds)
      .def_readonly("stride", &Loops::Loop::stride)
      .def_property_readonly("begins", [](const Loops::Loop& loop) {
        return integers(loop.begins, [](std::uint64_t begin) { return begin; });
      });
}

void define_position_event(py::module_& module) {
  py::class_<PositionEvent>(module, "PositionEvent")
      .def_property_readonly("kind", [](const PositionEvent& event) { return static_cast<int>(event.kind); })
      .def_readonly("seq", &PositionEvent::sequence)
      .def_readonly("time_ns", &PositionEvent::time_ns)
      .def_readonly("value", &PositionEvent::value)
      .def_readonly("is_explicit", &PositionEvent::is_reported)
      .def_readonly("ordinal", &PositionEvent::ordinal);
}

void define_failed_allocation(py::module_& module) {
  py::class_<FailedAllocation>(module, "FailedAllocation")
      .def_readonly("seq", &FailedAllocation::sequence)
      .def_readonly("forward_stack", &FailedAllocation::forward_stack);
}

void define_peak(py::module_& module) {
  py::class_<MemoryTimeline::Peak>(module, "Peak")
      .def_readonly("bytes", &MemoryTimeline::Peak::bytes)
      .def_readonly("seq", &MemoryTimeline::Peak::sequence)
      .def_readonly("time_ns", &MemoryTimeline::Peak::time_ns);
}

void define_device_timeline(py::module_& module) {
  py::class_<DeviceTimeline>(module, "DeviceTimeline")
      .def_readonly("device_type", &DeviceTimeline::device_type)
      .def_readonly("device_index", &DeviceTimeline::device_index)
      .def_readonly("reports_segments", &DeviceTimeline::reports_segments)
      .def_readonly("is_used", &DeviceTimeline::is_used)
      .def_readonly("allocated_peak", &DeviceTimeline::allocated_peak)
      .def_readonly("reserved_peak", &DeviceTimeline::reserved_peak)
      .def_readonly("max_requested", &DeviceTimeline::max_requested);
}

void define_disagreement(py::module_& module) {
  py::class_<ReplayFindings::Item>(module, "Disagreement")
      .def_readonly("seq", &ReplayFindings::Item::sequence)
      .def_readonly("device", &ReplayFindings::Item::device)
      .def_readonly("text", &ReplayFindings::Item::text);
}

void define_findings(py::module_& module) {
  py::class_<ReplayFindings>(module, "ReplayFindings")
      .def_readonly("states", &ReplayFindings::states)
      .def_readonly("agreeing", &ReplayFindings::agreeing)
      .def_readonly("resumed", &ReplayFindings::resumed)
      .def_readonly("void_states", &ReplayFindings::void_states)
      .def_readonly("contradictions", &ReplayFindings::contradictions)
      .def_readonly("after_loss", &ReplayFindings::after_loss)
      .def_readonly("differences", &ReplayFindings::differences)
      .def_readonly("kept_contradictions", &ReplayFindings::kept_contradictions);
}

void define_replay_run(py::module_& module) {
  py::class_<ReplayRun, std::shared_ptr<ReplayRun>>(module, "Replay")
      .def(py::init([](std::shared_ptr<TraceReader> trace, std::size_t points, const std::optional<Lines>& lines,
                       const py::object& callback, std::pair<std::uint64_t, std::uint64_t> nodes_at_begin) {
             const Progress progress = with_gil(callback);
             std::vector<std::uint32_t> line_of;
             if (lines) line_of.assign(lines->data(), lines->data() + lines->size());
             const py::gil_scoped_release unlocked;
             return std::make_shared<ReplayRun>(std::move(trace), points, line_of, progress, nodes_at_begin);
           }),
           py::arg("trace"), py::arg("points"), py::arg("lines") = py::none(), py::arg("progress") = py::none(),
           py::arg("nodes_at_begin") = std::pair<std::uint64_t, std::uint64_t>())
      .def("time_before",
           [](const ReplayRun& run, std::uint64_t until) {
             const py::gil_scoped_release unlocked;
             return run.time_before(until);
           })
      .def(
          "events",
          [](const ReplayRun& run, std::uint64_t first, std::uint64_t end, const std::vector<std::uint8_t>& kinds) {
            return EventStream(run.cursor_before(first), first, end, kinds, run.kept_events());
          },
          py::arg("first"), py::arg("end") = UINT64_MAX, py::arg("kinds") = std::vector<std::uint8_t>())
      .def("sequence_after",
           [](const ReplayRun& run, std::int64_t time_ns) {
             const py::gil_scoped_release unlocked;
             return run.sequence_after(time_ns);
           })
      .def("timelines",
           [](const ReplayRun& run) {
             std::vector<DeviceTimeline> result;
             for (std::size_t index = 0; index < run.timelines().size(); ++index) {
               result.push_back(device_timeline(run.end().devices()[index], run.timelines()[index]));
             }
             return result;
           })
      .def(
          "timeline",
          [](const ReplayRun& run, std::size_t device, const Integers& begins, const Integers& ends) {
            return interval_columns(run.timelines().at(device), begins, ends);
          },
          py::arg("device"), py::arg("begins"), py::arg("ends"))
      .def("long_lifetimes",
           [](const py::object& self) {
             py::list result;  // references, not copies of up to 100 MB
             for (const LongLifetimes& lives : self.cast<const ReplayRun&>().long_lifetimes()) {
               result.append(py::cast(lives, py::return_value_policy::reference_internal, self));
             }
             return result;
           })
      .def("loops", [](const ReplayRun& run) { return run.loops(); })
      .def("nodes_created",
           [](const ReplayRun& run) {
             return integers(run.end().forward_stacks().nodes_created(), [](std::uint64_t nodes) { return nodes; });
           })
      .def_property_readonly("compacted_positions", &ReplayRun::compacted_positions)
      .def_property_readonly("compacted_interval_ns", &ReplayRun::compacted_interval_ns)
      .def_property_readonly("left_out", &ReplayRun::left_out)
      .def_property_readonly("positions", &ReplayRun::positions)
      .def("bytes_at_positions", &bytes_at_positions, py::arg("devices"))
      .def_property_readonly("failed_allocations", &ReplayRun::failed_allocations)
      .def_property_readonly("kind_counts",
                             [](const ReplayRun& run) {
                               std::vector<std::uint64_t> counts;
                               for (std::size_t kind = 0; kind < ReplayRun::kKindNumbers; ++kind) {
                                 counts.push_back(run.kind_count(kind));
                               }
                               return counts;
                             })
      .def_property_readonly("unmatched_frees", &sum_of_devices<&DeviceHistory::unmatched_frees>)
      .def_property_readonly("missed_frees", &sum_of_devices<&DeviceHistory::missed_frees>)
      .def("named_blocks", [](const ReplayRun& run) { return named_columns(run.roles().named()); })
      .def("group_timelines", &group_timeline_columns, py::arg("points"), py::arg("begin_ns"), py::arg("end_ns"),
           py::arg("site_of_stack"), py::arg("site_count"), py::arg("with_extremes"), py::arg("progress") = py::none())
      .def("role_allocations", &role_allocation_columns, py::arg("first"), py::arg("until"))
      .def("allocations_with_roles", &ReplayRun::allocations_with_roles, py::arg("device"), py::arg("roles"),
           py::arg("excluded_stacks"), py::call_guard<py::gil_scoped_release>())
      .def("samples", [](const ReplayRun& run) { return sample_columns(run.samples()); })
      .def_property_readonly("findings", &ReplayRun::findings);
}

}  // namespace

void define_replay(py::module_& module) {
  define_position_event(module);
  define_failed_allocation(module);
  define_peak(module);
  define_device_timeline(module);
  define_disagreement(module);
  define_findings(module);
  define_long_lifetimes(module);
  define_loop(module);
  define_replay_run(module);
}

}  // namespace alloctrace
