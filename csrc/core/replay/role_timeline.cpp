#include "role_timeline.h"

#include <algorithm>

namespace alloctrace {
namespace {

// What one device holds, by role.
class RoleTotals {
 public:
  RoleTotals(const Roles& roles, std::size_t device) : roles_(&roles), device_(device) {}

  void allocated(const DeviceMemory& memory) {
    const PieceIndex index = memory.last_allocated();
    give_up(index);  // its free is missing
    add(index, memory.piece(index));
  }
  void ended(const EndedLife& life) { give_up(life.piece); }
  // After a state of the allocator, whose blocks may be others than those known.
  void count_all(const DeviceMemory& memory) {
    held_.clear();
    bytes_ = {};
    memory.for_each_allocated([&](const Piece& piece) { add(memory.index_of(piece), piece); });
  }
  const RoleBytes& bytes() const { return bytes_; }

 private:
  struct Held {
    std::uint64_t bytes = 0;
    Role role = Role::kUnknown;
  };

  void add(PieceIndex index, const Piece& piece) {
    if (index >= held_.size()) held_.resize(std::max<std::size_t>(index + std::size_t{1}, held_.size() * 2));
    held_[index] = {piece.requested, roles_->of(device_, piece).role};
    bytes_[static_cast<std::size_t>(held_[index].role)] += piece.requested;
  }
  void give_up(PieceIndex index) {
    if (index >= held_.size()) return;
    bytes_[static_cast<std::size_t>(held_[index].role)] -= held_[index].bytes;
    held_[index].bytes = 0;
  }

  const Roles* roles_;
  std::size_t device_;
  std::vector<Held> held_;  // by piece
  RoleBytes bytes_{};
};

}  // namespace

std::vector<std::vector<RoleBytes>> role_timelines(const std::shared_ptr<const TraceReader>& trace, TraceCursor cursor,
                                                   const Roles& roles, std::size_t points,
                                                   const std::function<void(double)>& progress) {
  std::vector<RoleTotals> totals;
  std::vector<std::vector<RoleBytes>> timelines;
  std::vector<std::size_t> filled;  // by device: how many intervals have ended
  const std::int64_t begin = trace->begin_ns();
  const double span = static_cast<double>(std::max<std::int64_t>(trace->end_ns() - begin, 1));
  cursor.decode_ahead();
  const auto fill = [&](std::size_t device, std::size_t until) {
    for (; filled[device] < until; ++filled[device]) timelines[device][filled[device]] = totals[device].bytes();
  };
  const auto know = [&](std::size_t devices) {
    while (totals.size() < devices) {
      totals.emplace_back(roles, totals.size());
      timelines.emplace_back(points);
      filled.push_back(0);
    }
  };
  const auto interval_at = [&](std::int64_t time_ns) {
    // Modulo 2^64: the time of an event that is damaged may be anything.
    const auto since = static_cast<std::uint64_t>(time_ns) - static_cast<std::uint64_t>(begin);
    const double share = static_cast<double>(static_cast<std::int64_t>(since)) / span;
    const auto last = static_cast<double>(points - 1);
    return static_cast<std::size_t>(std::clamp(share * static_cast<double>(points), 0.0, last));
  };
  // Of a fold the end is known.
  know(cursor.replay().devices().size());
  for (std::size_t device = 0; device < totals.size(); ++device) {
    totals[device].count_all(cursor.replay().devices()[device]);
    filled[device] = interval_at(trace->integrity().compacted_until_ns);
  }
  const auto take = [&](const Event& event, std::uint64_t, std::int64_t time_ns, const Change& change) {
    if (change.device < 0) return;
    const auto device = static_cast<std::size_t>(change.device);
    know(device + 1);
    fill(device, interval_at(time_ns));
    const DeviceMemory& memory = cursor.replay().devices()[device];
    if (event.kind == EventKind::kAlloc) {
      totals[device].allocated(memory);
    } else if (change.is_other_state) {
      totals[device].count_all(memory);
    } else if (memory.ended().birth != UINT64_MAX) {
      totals[device].ended(memory.ended());
    }
  };
  const std::size_t chunks = trace->chunks().size();
  while (!cursor.at_end()) {
    if (progress) progress(static_cast<double>(cursor.chunk()) / static_cast<double>(chunks));
    cursor.take_chunk(UINT64_MAX, nullptr, take);
  }
  for (std::size_t device = 0; device < totals.size(); ++device) fill(device, points);
  return timelines;
}

}  // namespace alloctrace
