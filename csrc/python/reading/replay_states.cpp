#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "../../core/replay/replay_run.h"
#include "bindings.h"
#include "numpy_columns.h"

namespace alloctrace {
namespace {

py::dict segment_columns(const std::vector<SegmentView>& segments) {
  py::dict result;
  const auto add = [&]<typename Get>(const char* name, Get get) { result[name] = integers(segments, get); };
  result["address"] = addresses(segments, [](const SegmentView& row) { return row.address; });
  add("total_bytes", [](const SegmentView& row) { return row.total_size; });
  add("allocated_bytes", [](const SegmentView& row) { return row.allocated_size; });
  add("active_bytes", [](const SegmentView& row) { return row.active_size; });
  add("requested_bytes", [](const SegmentView& row) { return row.requested_size; });
  add("location", [](const SegmentView& row) { return row.location; });
  result["is_large"] = column<bool>(segments, [](const SegmentView& row) { return row.is_large; });
  result["is_expandable"] = column<bool>(segments, [](const SegmentView& row) { return row.is_expandable; });
  return result;
}

using RoleOf = std::function<BlockRole(const Piece&)>;

void add_roles(py::dict& columns, const std::vector<BlockRole>& roles) {
  columns["role"] = column<std::int8_t>(roles, [](const BlockRole& row) { return row.role; });
  columns["role_is_exact"] = column<bool>(roles, [](const BlockRole& row) { return row.is_exact; });
}

// Return all blocks; for free blocks, the columns from stack_id to age_ns are 0.
py::dict block_columns(const std::vector<SegmentView>& segments, const std::vector<Piece>& blocks, std::int64_t now_ns,
                       const RoleOf& role_of) {
  std::vector<std::int64_t> segment_of(blocks.size(), 0);
  for (const SegmentView& segment : segments) {
    for (std::size_t i = 0; i < segment.block_count; ++i)
      segment_of[segment.first_block + i] = static_cast<std::int64_t>(segment.address);
  }
  py::dict result;
  result["segment"] = to_array(std::move(segment_of));
  result["address"] = addresses(blocks, [](const Piece& row) { return row.address; });
  const auto add = [&]<typename Get>(const char* name, Get get) { result[name] = integers(blocks, get); };
  const auto add_if_used = [&]<typename Get>(const char* name, Get get) {
    add(name, [get](const Piece& row) { return row.state == PieceState::kFree ? 0 : get(row); });
  };
  add("block_bytes", [](const Piece& row) { return row.size; });
  add("requested_bytes", [](const Piece& row) { return row.requested; });
  result["state"] = column<std::int8_t>(blocks, [](const Piece& row) { return row.state; });
  add_if_used("stack_id", [](const Piece& row) { return row.stack; });
  result["backward"] =
      column<bool>(blocks, [](const Piece& row) { return row.is_of_backward && row.state != PieceState::kFree; });
  add_if_used("thread", [](const Piece& row) { return row.thread; });
  add_if_used("node_type", [](const Piece& row) { return row.node_type; });
  add_if_used("alloc_seq", [](const Piece& row) { return row.alloc_sequence; });
  add_if_used("alloc_ns", [](const Piece& row) { return row.alloc_ns; });
  add_if_used("age_ns", [now_ns](const Piece& row) { return now_ns - row.alloc_ns; });
  result["older"] =
      column<bool>(blocks, [](const Piece& row) { return row.is_older && row.state != PieceState::kFree; });
  std::vector<BlockRole> roles;  // unknown for free blocks
  roles.reserve(blocks.size());
  for (const Piece& piece : blocks) {
    roles.push_back(piece.state == PieceState::kFree ? BlockRole{} : role_of(piece));
  }
  add_roles(result, roles);
  return result;
}

using Stacks = std::optional<std::vector<std::uint32_t>>;
using SequencedPiece = std::pair<std::uint64_t, const Piece*>;  // allocated at; pointer: a Piece is too large to sort

// Return allocated blocks, oldest first; only those of `stacks`, if given.
std::vector<SequencedPiece> sort_allocated(const DeviceMemory& device, const Stacks& stacks) {
  std::vector<bool> is_wanted;
  for (const std::uint32_t stack : stacks.value_or(std::vector<std::uint32_t>{})) {
    if (stack >= device.stacks().size()) continue;
    if (stack >= is_wanted.size()) is_wanted.resize(stack + std::size_t{1});
    is_wanted[stack] = true;
  }
  std::vector<SequencedPiece> rows;
  device.for_each_allocated([&](const Piece& piece) {
    if (!stacks || (piece.stack < is_wanted.size() && is_wanted[piece.stack]))
      rows.emplace_back(piece.alloc_sequence, &piece);
  });
  std::sort(rows.begin(), rows.end());
  return rows;
}

py::dict live_columns(const DeviceMemory& device, const Stacks& stacks, const RoleOf& role_of) {
  const std::vector<SequencedPiece> blocks = sort_allocated(device, stacks);
  py::dict result;
  result["address"] = addresses(blocks, [](const SequencedPiece& row) { return row.second->address; });
  const auto add = [&]<typename Get>(const char* name, Get get) {
    result[name] = integers(blocks, [get](const SequencedPiece& row) { return get(*row.second); });
  };
  const auto add_flag = [&]<typename Get>(const char* name, Get get) {
    result[name] = column<bool>(blocks, [get](const SequencedPiece& row) { return get(*row.second); });
  };
  add("requested_bytes", [](const Piece& row) { return row.requested; });
  add("block_bytes", [](const Piece& row) { return row.size; });
  add("stack_id", [](const Piece& row) { return row.stack; });
  add_flag("backward", [](const Piece& row) { return row.is_of_backward; });
  add("thread", [](const Piece& row) { return row.thread; });
  add("node_type", [](const Piece& row) { return row.node_type; });
  add("alloc_seq", [](const Piece& row) { return row.alloc_sequence; });
  add("alloc_ns", [](const Piece& row) { return row.alloc_ns; });
  add_flag("older", [](const Piece& row) { return row.is_older; });
  std::vector<BlockRole> roles;
  roles.reserve(blocks.size());
  for (const SequencedPiece& row : blocks) roles.push_back(role_of(*row.second));
  add_roles(result, roles);
  return result;
}

// Return the columns of live_columns() that show lifetimes, in a fraction of the time and memory.
py::dict lifetime_columns(const DeviceMemory& device) {
  const std::vector<SequencedPiece> blocks = sort_allocated(device, {});
  py::dict result;
  result["alloc_seq"] = integers(blocks, [](const SequencedPiece& row) { return row.first; });
  result["alloc_ns"] = integers(blocks, [](const SequencedPiece& row) { return row.second->alloc_ns; });
  result["block_bytes"] = integers(blocks, [](const SequencedPiece& row) { return row.second->size; });
  result["stack_id"] = integers(blocks, [](const SequencedPiece& row) { return row.second->stack; });
  result["older"] = column<bool>(blocks, [](const SequencedPiece& row) { return row.second->is_older; });
  return result;
}

// Return live bytes and blocks, one row for each role number.
py::dict role_columns(const DeviceMemory& device, const RoleOf& role_of) {
  struct Sum {
    std::uint64_t bytes = 0, exact_bytes = 0, blocks = 0;
  };
  std::vector<Sum> sums(kRoleCount);
  device.for_each_allocated([&](const Piece& piece) {
    const BlockRole role = role_of(piece);
    Sum& sum = sums[static_cast<std::size_t>(role.role)];
    sum.bytes += piece.requested;
    if (role.is_exact) sum.exact_bytes += piece.requested;
    ++sum.blocks;
  });
  py::dict result;
  result["live_bytes"] = integers(sums, [](const Sum& row) { return row.bytes; });
  result["exact_bytes"] = integers(sums, [](const Sum& row) { return row.exact_bytes; });
  result["live_blocks"] = integers(sums, [](const Sum& row) { return row.blocks; });
  return result;
}

// Return one row for each stack that has allocated, or has live blocks older than the recording.
py::dict stack_columns(const DeviceMemory& device) {
  struct Row {
    std::uint32_t stack = 0;
    StackTotals totals;
    std::uint64_t live_blocks = 0, live_bytes = 0, live_backward_bytes = 0, live_allocated = 0;
  };
  std::size_t count = std::max<std::size_t>(device.stacks().size(), 1);
  device.for_each_allocated([&](const Piece& piece) { count = std::max<std::size_t>(count, piece.stack + 1); });
  std::vector<Row> rows(count);
  for (std::uint32_t stack = 0; stack < device.stacks().size(); ++stack) rows[stack].totals = device.stacks()[stack];
  device.for_each_allocated([&](const Piece& piece) {
    Row& row = rows[piece.stack];
    ++row.live_blocks;
    row.live_bytes += piece.requested;
    row.live_allocated += piece.size;
    if (piece.is_of_backward) row.live_backward_bytes += piece.requested;
    row.totals.largest = std::max(row.totals.largest, piece.requested);
  });
  for (std::uint32_t stack = 0; stack < rows.size(); ++stack) rows[stack].stack = stack;
  std::erase_if(rows, [](const Row& row) { return row.totals.allocations == 0 && row.live_blocks == 0; });
  py::dict result;
  const auto add = [&]<typename Get>(const char* name, Get get) { result[name] = integers(rows, get); };
  add("stack_id", [](const Row& row) { return row.stack; });
  add("allocations", [](const Row& row) { return row.totals.allocations; });
  add("total_bytes", [](const Row& row) { return row.totals.bytes; });
  add("live_bytes", [](const Row& row) { return row.live_bytes; });
  add("live_blocks", [](const Row& row) { return row.live_blocks; });
  add("largest_bytes", [](const Row& row) { return row.totals.largest; });
  add("live_backward_bytes", [](const Row& row) { return row.live_backward_bytes; });
  add("live_block_bytes", [](const Row& row) { return row.live_allocated; });
  return result;
}

using DeviceFilter = std::optional<std::pair<std::int32_t, std::int32_t>>;

struct DeviceColumns {
  std::int32_t device_type, device_index;
  py::dict columns;
};

// Return the table that `columns` makes of each device, or of the one in `filter`.
template <typename Columns>
std::vector<DeviceColumns> columns_by_device(const Replay& replay, const DeviceFilter& filter, Columns columns) {
  std::vector<DeviceColumns> result;
  for (const DeviceMemory& device : replay.devices()) {
    if (filter && *filter != std::pair(device.device_type(), device.device_index())) continue;
    result.push_back({device.device_type(), device.device_index(), columns(device)});
  }
  return result;
}

// States for several Python threads. A thread that replays, or waits for another thread's replay, releases the GIL.
class SharedStates {
 public:
  explicit SharedStates(std::shared_ptr<ReplayRun> run) : states_(std::move(run)) {}

  // Return the tables that `columns` makes, with the GIL, of the state before event `until`.
  template <typename Columns>
  std::vector<DeviceColumns> before(std::uint64_t until, const DeviceFilter& filter, Columns columns) {
    const py::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> guard(mutex_);
    const Replay& state = states_.before(until);
    const py::gil_scoped_acquire locked;
    return columns_by_device(state, filter, [&](const DeviceMemory& device) { return columns(state, device); });
  }
  RoleOf roles_of(const Replay& state, const DeviceMemory& device) const {
    const auto number = static_cast<std::size_t>(&device - state.devices().data());
    return [this, number](const Piece& piece) { return states_.run().roles().role_of(number, piece); };
  }
  void release() {
    const py::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> guard(mutex_);
    states_.release();
  }

 private:
  std::mutex mutex_;
  States states_;
};

void define_device_columns(py::module_& module) {
  py::class_<DeviceColumns>(module, "DeviceColumns")
      .def_readonly("device_type", &DeviceColumns::device_type)
      .def_readonly("device_index", &DeviceColumns::device_index)
      .def_readonly("columns", &DeviceColumns::columns);
}

void define_shared_states(py::module_& module) {
  using Memory = DeviceMemory;
  py::class_<SharedStates>(module, "States")
      .def(py::init<std::shared_ptr<ReplayRun>>(), py::arg("replay"))
      .def(
          "segments_before",
          [](SharedStates& states, std::uint64_t until, const DeviceFilter& filter) {
            return states.before(until, filter, [](const Replay&, const Memory& device) {
              std::vector<SegmentView> segments;
              std::vector<Piece> blocks;
              device.list(segments, blocks);
              return segment_columns(segments);
            });
          },
          py::arg("until"), py::arg("device") = py::none())
      .def(
          "blocks_before",
          [](SharedStates& states, std::uint64_t until, const DeviceFilter& filter) {
            return states.before(until, filter, [&](const Replay& state, const Memory& device) {
              std::vector<SegmentView> segments;
              std::vector<Piece> blocks;
              device.list(segments, blocks);
              return block_columns(segments, blocks, state.time_ns(), states.roles_of(state, device));
            });
          },
          py::arg("until"), py::arg("device") = py::none())
      .def(
          "live_before",
          [](SharedStates& states, std::uint64_t until, const DeviceFilter& filter, const Stacks& stacks) {
            return states.before(until, filter, [&](const Replay& state, const Memory& device) {
              return live_columns(device, stacks, states.roles_of(state, device));
            });
          },
          py::arg("until"), py::arg("device") = py::none(), py::arg("stacks") = py::none())
      .def(
          "lifetimes_before",
          [](SharedStates& states, std::uint64_t until, const DeviceFilter& filter) {
            return states.before(until, filter,
                                 [](const Replay&, const Memory& device) { return lifetime_columns(device); });
          },
          py::arg("until"), py::arg("device") = py::none())
      .def(
          "roles_before",
          [](SharedStates& states, std::uint64_t until, const DeviceFilter& filter) {
            return states.before(until, filter, [&](const Replay& state, const Memory& device) {
              return role_columns(device, states.roles_of(state, device));
            });
          },
          py::arg("until"), py::arg("device") = py::none())
      .def(
          "stacks_before",
          [](SharedStates& states, std::uint64_t until, const DeviceFilter& filter) {
            return states.before(until, filter,
                                 [](const Replay&, const Memory& device) { return stack_columns(device); });
          },
          py::arg("until"), py::arg("device") = py::none())
      .def("release", &SharedStates::release);
}

}  // namespace

void define_states(py::module_& module) {
  define_device_columns(module);
  define_shared_states(module);
}

}  // namespace alloctrace
