#include "role_timeline.h"

#include <algorithm>

namespace alloctrace {

std::vector<std::array<RoleAllocations, kRoleCount>> role_allocations(TraceCursor cursor, const Roles& roles,
                                                                      std::uint64_t first, std::uint64_t until) {
  std::vector<std::array<RoleAllocations, kRoleCount>> by_device;
  const auto on_event = [&](const Event& event, std::uint64_t sequence, std::int64_t, const Change& change) {
    if (change.device < 0 || sequence < first || event.kind != EventKind::kAlloc) return;
    const auto device = static_cast<std::size_t>(change.device);
    if (device >= by_device.size()) by_device.resize(device + 1);
    const DeviceMemory& memory = cursor.replay().devices()[device];
    const Piece& piece = memory.piece(memory.last_allocated());
    const BlockRole role = roles.role_of(device, piece);
    RoleAllocations& sums = by_device[device][static_cast<std::size_t>(role.role)];
    ++sums.allocations;
    sums.bytes += piece.requested;
    if (role.is_exact) sums.exact_bytes += piece.requested;
    sums.largest = std::max<std::uint64_t>(sums.largest, piece.requested);
  };
  while (cursor.consume_chunk(until, nullptr, on_event)) {
  }
  return by_device;
}

namespace {

class RoleTotals {
 public:
  RoleTotals(const Roles& roles, std::size_t device) : roles_(&roles), device_(device) {}

  void add_last(const DeviceMemory& memory) {
    const PieceIndex index = memory.last_allocated();
    remove_piece(index);  // if its free is missing
    add(index, memory.piece(index));
  }
  void remove(const FreedBlock& block) { remove_piece(block.piece); }
  // Recount after a state of the allocator replaced the device's blocks.
  void count_all(const DeviceMemory& memory) {
    live_.clear();
    bytes_ = {};
    memory.for_each_allocated([&](const Piece& piece) { add(memory.index_of(piece), piece); });
  }
  const RoleBytes& bytes() const { return bytes_; }

 private:
  struct LiveBlock {
    std::uint64_t bytes = 0;
    Role role = Role::kUnknown;
  };

  void add(PieceIndex index, const Piece& piece) {
    if (index >= live_.size()) live_.resize(std::max<std::size_t>(index + std::size_t{1}, live_.size() * 2));
    live_[index] = {piece.requested, roles_->role_of(device_, piece).role};
    bytes_[static_cast<std::size_t>(live_[index].role)] += piece.requested;
  }
  void remove_piece(PieceIndex index) {
    if (index >= live_.size()) return;
    bytes_[static_cast<std::size_t>(live_[index].role)] -= live_[index].bytes;
    live_[index].bytes = 0;
  }

  const Roles* roles_;
  std::size_t device_;
  std::vector<LiveBlock> live_;  // by piece
  RoleBytes bytes_{};
};

}  // namespace

std::vector<std::vector<RoleBytes>> role_timelines(const std::shared_ptr<const TraceReader>& trace, TraceCursor cursor,
                                                   const Roles& roles, std::size_t points,
                                                   const std::function<void(double)>& progress) {
  std::vector<RoleTotals> totals;
  std::vector<std::vector<RoleBytes>> timelines;
  std::vector<std::size_t> filled;  // number of completed intervals by device
  const std::int64_t begin = trace->begin_ns();
  const double span = static_cast<double>(std::max<std::int64_t>(trace->end_ns() - begin, 1));
  cursor.decode_in_background();
  const auto fill = [&](std::size_t device, std::size_t until) {
    for (; filled[device] < until; ++filled[device]) timelines[device][filled[device]] = totals[device].bytes();
  };
  const auto add_devices = [&](std::size_t devices) {
    while (totals.size() < devices) {
      totals.emplace_back(roles, totals.size());
      timelines.emplace_back(points);
      filled.push_back(0);
    }
  };
  const auto interval_at = [&](std::int64_t time_ns) {
    // Unsigned: the difference of corrupt times may overflow.
    const auto since = static_cast<std::uint64_t>(time_ns) - static_cast<std::uint64_t>(begin);
    const double share = static_cast<double>(static_cast<std::int64_t>(since)) / span;
    const auto last = static_cast<double>(points - 1);
    return static_cast<std::size_t>(std::clamp(share * static_cast<double>(points), 0.0, last));
  };
  // Start from the end of the compacted part.
  add_devices(cursor.replay().devices().size());
  for (std::size_t device = 0; device < totals.size(); ++device) {
    totals[device].count_all(cursor.replay().devices()[device]);
    filled[device] = interval_at(trace->integrity().compacted_until_ns);
  }
  const auto on_event = [&](const Event& event, std::uint64_t, std::int64_t time_ns, const Change& change) {
    if (change.device < 0) return;
    const auto device = static_cast<std::size_t>(change.device);
    add_devices(device + 1);
    fill(device, interval_at(time_ns));
    const DeviceMemory& memory = cursor.replay().devices()[device];
    if (event.kind == EventKind::kAlloc) {
      totals[device].add_last(memory);
    } else if (change.replaces_state) {
      totals[device].count_all(memory);
    } else if (memory.last_freed().alloc_sequence != UINT64_MAX) {
      totals[device].remove(memory.last_freed());
    }
  };
  const std::size_t chunks = trace->chunks().size();
  while (!cursor.at_end()) {
    if (progress) progress(static_cast<double>(cursor.chunk()) / static_cast<double>(chunks));
    cursor.consume_chunk(UINT64_MAX, nullptr, on_event);
  }
  for (std::size_t device = 0; device < totals.size(); ++device) fill(device, points);
  return timelines;
}

}  // namespace alloctrace
