#include "event_stream.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "bindings.h"
#include "numpy_columns.h"

namespace alloctrace {
namespace {

constexpr std::uint64_t kMaxEventsPerCall = 4'000'000;

struct Row {
  std::uint64_t sequence;
  std::int64_t time_ns;
  Event event;
  std::uint32_t forward_stack;
};

}  // namespace

EventStream::EventStream(TraceCursor cursor, std::uint64_t first, std::uint64_t end,
                         const std::vector<std::uint8_t>& kinds, std::vector<KeptEvent> retained)
    : cursor_(std::move(cursor)), first_(first), end_(end), retained_(std::move(retained)) {
  if (kinds.empty()) is_wanted_.fill(true);
  for (const std::uint8_t kind : kinds) is_wanted_[kind] = true;
  if (kinds.empty()) retained_.clear();  // all kinds: only events after the compacted part
}

py::object EventStream::next(std::size_t min_rows) {
  std::vector<Row> rows;
  bool is_at_end = false;
  {
    const py::gil_scoped_release unlocked;
    for (const KeptEvent& row : retained_) {
      if (row.sequence >= first_ && row.sequence < end_ && is_wanted_[static_cast<std::size_t>(row.event.kind)]) {
        rows.push_back({row.sequence, row.time_ns, row.event, 0});
      }
    }
    retained_.clear();
    // Count events, not sequence numbers: where events are missing, the table would have only a few rows.
    std::uint64_t events_read = 0;
    const auto add_row = [&](const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Change& change) {
      ++events_read;
      if (sequence >= first_ && is_wanted_[static_cast<std::size_t>(event.kind)]) {
        rows.push_back({sequence, time_ns, event, change.forward_stack});
      }
    };
    while (!is_at_end && rows.size() < min_rows && events_read < kMaxEventsPerCall) {
      is_at_end = !cursor_.consume_chunk(end_, nullptr, add_row);
    }
  }
  if (rows.empty() && is_at_end) return py::none();
  py::dict result;
  const auto add = [&]<typename Get>(const char* name, Get get) { result[name] = integers(rows, get); };
  add("seq", [](const Row& row) { return row.sequence; });
  add("time_ns", [](const Row& row) { return row.time_ns; });
  result["kind"] = column<std::uint8_t>(rows, [](const Row& row) { return row.event.kind; });
  result["location"] = column<std::uint32_t>(rows, [](const Row& row) { return row.event.location; });
  result["address"] = addresses(rows, [](const Row& row) { return row.event.address; });
  add("requested_bytes", [](const Row& row) { return row.event.size; });
  // 32 bits halve the largest table; only a corrupt trace has ids above 2^31.
  const auto add_id = [&]<typename Get>(const char* name, Get get) {
    result[name] =
        column<std::int32_t>(rows, [&](const Row& row) { return std::min<std::uint32_t>(get(row), INT32_MAX); });
  };
  add_id("thread", [](const Row& row) { return row.event.thread; });
  add_id("stack_id", [](const Row& row) { return row.event.stack; });
  add_id("forward_stack_id", [](const Row& row) { return row.forward_stack; });
  add("autograd_seq", [](const Row& row) { return row.event.sequence; });
  add("node_seq", [](const Row& row) { return row.event.node_sequence; });
  add("node_thread", [](const Row& row) { return row.event.node_thread; });
  result["node_type"] = column<std::uint16_t>(rows, [](const Row& row) { return row.event.node_type; });
  return result;
}

void define_event_stream(py::module_& module) {
  py::class_<EventStream>(module, "EventStream").def("next", &EventStream::next, py::arg("min_rows"));
}

}  // namespace alloctrace
