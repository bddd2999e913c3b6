#include "replay_states.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "../../core/replay/replay_run.h"
#include "../../core/replay/states.h"
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

// Role numbers; of free blocks unknown.
void add_roles(py::dict& columns, const std::vector<Piece>& blocks, const RoleOf& role_of) {
  std::vector<BlockRole> roles;
  roles.reserve(blocks.size());
  for (const Piece& piece : blocks) {
    roles.push_back(piece.state == PieceState::kFree ? BlockRole{} : role_of(piece));
  }
  columns["role"] = column<std::int8_t>(roles, [](const BlockRole& row) { return row.role; });
  columns["role_is_exact"] = column<bool>(roles, [](const BlockRole& row) { return row.is_exact; });
}

// What only blocks in use have (stack to age_ns) is 0 for the others.
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
  const auto add_of_used = [&]<typename Get>(const char* name, Get get) {
    add(name, [get](const Piece& row) { return row.state == PieceState::kFree ? 0 : get(row); });
  };
  add("block_bytes", [](const Piece& row) { return row.size; });
  add("requested_bytes", [](const Piece& row) { return row.requested; });
  result["state"] = column<std::int8_t>(blocks, [](const Piece& row) { return row.state; });
  add_of_used("stack_id", [](const Piece& row) { return row.stack; });
  result["backward"] =
      column<bool>(blocks, [](const Piece& row) { return row.is_of_backward && row.state != PieceState::kFree; });
  add_of_used("thread", [](const Piece& row) { return row.thread; });
  add_of_used("node_type", [](const Piece& row) { return row.node_type; });
  add_of_used("alloc_seq", [](const Piece& row) { return row.alloc_sequence; });
  add_of_used("alloc_ns", [](const Piece& row) { return row.alloc_ns; });
  add_of_used("age_ns", [now_ns](const Piece& row) { return now_ns - row.alloc_ns; });
  result["older"] =
      column<bool>(blocks, [](const Piece& row) { return row.is_older && row.state != PieceState::kFree; });
  add_roles(result, blocks, role_of);
  return result;
}

using Stacks = std::optional<std::vector<std::uint32_t>>;
using PieceRow = std::pair<std::uint64_t, const Piece*>;  // its birth, and the piece: too large to be moved about

// What is allocated, oldest first; of these stacks only, where some are given.
std::vector<PieceRow> allocated_by_birth(const DeviceMemory& device, const Stacks& stacks) {
  std::vector<bool> is_wanted;
  for (const std::uint32_t stack : stacks.value_or(std::vector<std::uint32_t>{})) {
    if (stack >= device.stacks().size()) continue;
    if (stack >= is_wanted.size()) is_wanted.resize(stack + std::size_t{1});
    is_wanted[stack] = true;
  }
  std::vector<PieceRow> rows;
  device.for_each_allocated([&](const Piece& piece) {
    if (!stacks || (piece.stack < is_wanted.size() && is_wanted[piece.stack]))
      rows.emplace_back(piece.alloc_sequence, &piece);
  });
  std::sort(rows.begin(), rows.end());
  return rows;
}

py::dict live_columns(const DeviceMemory& device, const Stacks& stacks, const RoleOf& role_of) {
  const std::vector<PieceRow> blocks = allocated_by_birth(device, stacks);
  py::dict result;
  result["address"] = addresses(blocks, [](const PieceRow& row) { return row.second->address; });
  const auto add = [&]<typename Get>(const char* name, Get get) {
    result[name] = integers(blocks, [get](const PieceRow& row) { return get(*row.second); });
  };
  const auto flag = [&]<typename Get>(const char* name, Get get) {
    result[name] = column<bool>(blocks, [get](const PieceRow& row) { return get(*row.second); });
  };
  add("requested_bytes", [](const Piece& row) { return row.requested; });
  add("block_bytes", [](const Piece& row) { return row.size; });
  add("stack_id", [](const Piece& row) { return row.stack; });
  flag("backward", [](const Piece& row) { return row.is_of_backward; });
  add("thread", [](const Piece& row) { return row.thread; });
  add("node_type", [](const Piece& row) { return row.node_type; });
  add("alloc_seq", [](const Piece& row) { return row.alloc_sequence; });
  add("alloc_ns", [](const Piece& row) { return row.alloc_ns; });
  flag("older", [](const Piece& row) { return row.is_older; });
  std::vector<BlockRole> roles;
  roles.reserve(blocks.size());
  for (const auto& [birth, piece] : blocks) roles.push_back(role_of(*piece));
  result["role"] = column<std::int8_t>(roles, [](const BlockRole& row) { return row.role; });
  result["role_is_exact"] = column<bool>(roles, [](const BlockRole& row) { return row.is_exact; });
  return result;
}

// Of the same blocks what tells how long they have lived. It takes a fraction of the time, and of the memory.
py::dict life_columns(const DeviceMemory& device) {
  const std::vector<PieceRow> blocks = allocated_by_birth(device, {});
  py::dict result;
  result["alloc_seq"] = integers(blocks, [](const PieceRow& row) { return row.first; });
  result["alloc_ns"] = integers(blocks, [](const PieceRow& row) { return row.second->alloc_ns; });
  result["block_bytes"] = integers(blocks, [](const PieceRow& row) { return row.second->size; });
  result["stack_id"] = integers(blocks, [](const PieceRow& row) { return row.second->stack; });
  result["older"] = column<bool>(blocks, [](const PieceRow& row) { return row.second->is_older; });
  return result;
}

// A row for each role number: what is live.
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

// A row for each stack that has allocated so far, or holds what the trace began with.
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

using Wanted = std::optional<std::pair<std::int32_t, std::int32_t>>;

// A table of one device.
struct DeviceColumns {
  std::int32_t device_type, device_index;
  py::dict columns;
};

// The wanted device, or all, and what `columns` makes of each.
template <typename Columns>
std::vector<DeviceColumns> by_device(const Replay& replay, const Wanted& wanted, Columns columns) {
  std::vector<DeviceColumns> result;
  for (const DeviceMemory& device : replay.devices()) {
    if (wanted && *wanted != std::pair(device.device_type(), device.device_index())) continue;
    result.push_back({device.device_type(), device.device_index(), columns(device)});
  }
  return result;
}

// States that several Python threads may ask for. Whoever waits for another's walk, or is on one, does not hold the
// GIL.
class SharedStates {
 public:
  explicit SharedStates(std::shared_ptr<ReplayRun> run) : states_(std::move(run)) {}

  // What `columns` makes, with the GIL, of the state before an event and the wanted devices.
  template <typename Columns>
  std::vector<DeviceColumns> before(std::uint64_t until, const Wanted& wanted, Columns columns) {
    const py::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> one(mutex_);
    const Replay& state = states_.before(until);
    const py::gil_scoped_acquire locked;
    return by_device(state, wanted, [&](const DeviceMemory& device) { return columns(state, device); });
  }
  RoleOf roles_of(const Replay& state, const DeviceMemory& device) const {
    const auto number = static_cast<std::size_t>(&device - state.devices().data());
    return [this, number](const Piece& piece) { return states_.run().roles().role_of(number, piece); };
  }
  void release() {
    const py::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> one(mutex_);
    states_.release();
  }

 private:
  std::mutex mutex_;
  States states_;
};

}  // namespace

void define_states(py::module_& module) {
  using Memory = DeviceMemory;
  py::class_<DeviceColumns>(module, "DeviceColumns")
      .def_readonly("device_type", &DeviceColumns::device_type)
      .def_readonly("device_index", &DeviceColumns::device_index)
      .def_readonly("columns", &DeviceColumns::columns);
  py::class_<SharedStates>(module, "States")
      .def(py::init<std::shared_ptr<ReplayRun>>(), py::arg("replay"))
      .def(
          "segments_before",
          [](SharedStates& states, std::uint64_t until, const Wanted& wanted) {
            return states.before(until, wanted, [](const Replay&, const Memory& device) {
              std::vector<SegmentView> segments;
              std::vector<Piece> blocks;
              device.list(segments, blocks);
              return segment_columns(segments);
            });
          },
          py::arg("until"), py::arg("wanted") = py::none())
      .def(
          "blocks_before",
          [](SharedStates& states, std::uint64_t until, const Wanted& wanted) {
            return states.before(until, wanted, [&](const Replay& state, const Memory& device) {
              std::vector<SegmentView> segments;
              std::vector<Piece> blocks;
              device.list(segments, blocks);
              return block_columns(segments, blocks, state.time_ns(), states.roles_of(state, device));
            });
          },
          py::arg("until"), py::arg("wanted") = py::none())
      .def(
          "live_before",
          [](SharedStates& states, std::uint64_t until, const Wanted& wanted, const Stacks& stacks) {
            return states.before(until, wanted, [&](const Replay& state, const Memory& device) {
              return live_columns(device, stacks, states.roles_of(state, device));
            });
          },
          py::arg("until"), py::arg("wanted") = py::none(), py::arg("stacks") = py::none())
      .def(
          "lives_before",
          [](SharedStates& states, std::uint64_t until, const Wanted& wanted) {
            return states.before(until, wanted,
                                 [](const Replay&, const Memory& device) { return life_columns(device); });
          },
          py::arg("until"), py::arg("wanted") = py::none())
      .def(
          "roles_before",
          [](SharedStates& states, std::uint64_t until, const Wanted& wanted) {
            return states.before(until, wanted, [&](const Replay& state, const Memory& device) {
              return role_columns(device, states.roles_of(state, device));
            });
          },
          py::arg("until"), py::arg("wanted") = py::none())
      .def(
          "stacks_before",
          [](SharedStates& states, std::uint64_t until, const Wanted& wanted) {
            return states.before(until, wanted,
                                 [](const Replay&, const Memory& device) { return stack_columns(device); });
          },
          py::arg("until"), py::arg("wanted") = py::none())
      .def("release", &SharedStates::release);
}

}  // namespace alloctrace
