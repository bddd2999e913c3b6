#include "group_timeline.h"

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

std::vector<std::uint64_t> allocations_with_roles(TraceCursor cursor, const Roles& roles, std::size_t device,
                                                  const std::vector<std::size_t>& included_roles,
                                                  const std::vector<bool>& excluded) {
  std::vector<std::uint64_t> sequences;
  const auto on_event = [&](const Event& event, std::uint64_t sequence, std::int64_t, const Change& change) {
    if (change.device != static_cast<std::int64_t>(device) || event.kind != EventKind::kAlloc) return;
    const DeviceMemory& memory = cursor.replay().devices()[device];
    const Piece& piece = memory.piece(memory.last_allocated());
    if (piece.stack < excluded.size() && excluded[piece.stack]) return;
    const auto role = static_cast<std::size_t>(roles.role_of(device, piece).role);
    if (std::ranges::find(included_roles, role) != included_roles.end()) sequences.push_back(sequence);
  };
  while (cursor.consume_chunk(UINT64_MAX, nullptr, on_event)) {
  }
  return sequences;
}

namespace {

// Live bytes of one device by group, and their timeline.
class GroupLevels {
 public:
  GroupLevels(const Roles& roles, std::size_t device, const GroupOptions& options)
      : roles_(&roles),
        device_(device),
        options_(&options),
        groups_(kRoleCount + options.site_count),
        bytes_(groups_),
        lowest_(groups_),
        highest_(groups_),
        at_peak_(groups_) {
    timeline_.groups = groups_;
    timeline_.last.resize(groups_ * options.points);
    if (!options.with_extremes) return;
    for (auto* const bytes : {&timeline_.lowest, &timeline_.highest, &timeline_.at_peak}) {
      bytes->resize(groups_ * options.points);
    }
    timeline_.peak_sequences.resize(options.points);
  }

  void add_last(const DeviceMemory& memory, std::uint64_t sequence) {
    const PieceIndex index = memory.last_allocated();
    remove_piece(index);  // if its free is missing
    add(index, memory.piece(index));
    sequence_ = sequence;
  }
  void remove(const FreedBlock& block, std::uint64_t sequence) {
    remove_piece(block.piece);
    sequence_ = sequence;
  }
  // Recount after a state of the allocator replaced the device's blocks.
  void count_all(const DeviceMemory& memory, std::uint64_t sequence) {
    raise_peak();
    live_.clear();
    std::fill(bytes_.begin(), bytes_.end(), 0);
    total_ = 0;
    memory.for_each_allocated([&](const Piece& piece) { add(memory.index_of(piece), piece, false); });
    for (std::size_t group = 0; group < groups_; ++group) widen(group);
    sequence_ = sequence;
  }
  // Begin the first interval with the current level. `interval`: the first that is not compacted. `sequence`: the last
  // event before.
  void start(std::size_t interval, std::uint64_t sequence) {
    interval_ = interval;
    sequence_ = sequence;
    begin_interval();
  }
  // Complete the intervals below `until`.
  void complete(std::size_t until) {
    if (interval_ >= until) return;
    raise_peak();
    for (; interval_ < until; ++interval_) {
      store();
      begin_interval();
    }
  }
  GroupTimeline&& release_timeline() { return std::move(timeline_); }

 private:
  struct LiveBlock {
    std::uint64_t bytes = 0;
    std::uint32_t role = 0, site = 0;  // numbers of groups
  };

  void add(PieceIndex index, const Piece& piece, bool widens = true) {
    if (index >= live_.size()) live_.resize(std::max<std::size_t>(index + std::size_t{1}, live_.size() * 2));
    LiveBlock& block = live_[index];
    block.bytes = piece.requested;
    block.role = static_cast<std::uint32_t>(roles_->role_of(device_, piece).role);
    block.site = site_of(piece.stack);
    total_ += block.bytes;
    bytes_[block.role] += block.bytes;
    if (block.site) bytes_[block.site] += block.bytes;
    if (widens) widen_both(block);
  }
  void remove_piece(PieceIndex index) {
    if (index >= live_.size() || !live_[index].bytes) return;
    raise_peak();
    LiveBlock& block = live_[index];
    total_ -= block.bytes;
    bytes_[block.role] -= block.bytes;
    if (block.site) bytes_[block.site] -= block.bytes;
    widen_both(block);
    block.bytes = 0;
  }
  // Return the group of a stack's site; 0 if sites are not counted.
  std::uint32_t site_of(std::uint32_t stack) const {
    if (!options_->site_count) return 0;
    std::size_t site = options_->site_count - 1;
    if (device_ < options_->site_of_stack.size() && stack < options_->site_of_stack[device_].size()) {
      site = std::min<std::size_t>(site, options_->site_of_stack[device_][stack]);
    }
    return static_cast<std::uint32_t>(kRoleCount + site);
  }
  void widen(std::size_t group) {
    lowest_[group] = std::min(lowest_[group], bytes_[group]);
    highest_[group] = std::max(highest_[group], bytes_[group]);
  }
  void widen_both(const LiveBlock& block) {
    widen(block.role);
    if (block.site) widen(block.site);
  }
  // Call before bytes fall: a copy at each local maximum instead of at each allocation.
  void raise_peak() {
    if (!options_->with_extremes || total_ <= peak_) return;
    peak_ = total_;
    peak_sequence_ = sequence_;
    at_peak_ = bytes_;
  }
  void begin_interval() {
    peak_ = total_;
    peak_sequence_ = sequence_;
    lowest_ = highest_ = at_peak_ = bytes_;
  }
  void store() {
    const auto copy = [&](const std::vector<std::uint64_t>& from, std::vector<std::uint64_t>& to) {
      std::copy(from.begin(), from.end(), to.begin() + static_cast<std::ptrdiff_t>(interval_ * groups_));
    };
    copy(bytes_, timeline_.last);
    if (!options_->with_extremes) return;
    copy(lowest_, timeline_.lowest);
    copy(highest_, timeline_.highest);
    copy(at_peak_, timeline_.at_peak);
    timeline_.peak_sequences[interval_] = peak_sequence_;
  }

  const Roles* roles_;
  std::size_t device_;
  const GroupOptions* options_;
  std::size_t groups_;
  std::vector<LiveBlock> live_;             // by piece
  std::uint64_t total_ = 0, sequence_ = 0;  // after the last event
  std::vector<std::uint64_t> bytes_;
  // Of the current interval.
  std::size_t interval_ = 0;
  std::uint64_t peak_ = 0, peak_sequence_ = 0;
  std::vector<std::uint64_t> lowest_, highest_, at_peak_;
  GroupTimeline timeline_;
};

}  // namespace

std::vector<GroupTimeline> group_timelines(const TraceReader& trace, TraceCursor cursor, const Roles& roles,
                                           const GroupOptions& options, const std::function<void(double)>& progress) {
  const std::size_t points = options.points;
  const double span = static_cast<double>(std::max<std::int64_t>(options.end_ns - options.begin_ns, 1));
  const auto interval_at = [&](std::int64_t time_ns) {
    // Unsigned: the difference of corrupt times may overflow.
    const auto since = static_cast<std::uint64_t>(time_ns) - static_cast<std::uint64_t>(options.begin_ns);
    const double share = static_cast<double>(static_cast<std::int64_t>(since)) / span;
    const auto last = static_cast<double>(points - 1);
    return static_cast<std::size_t>(std::clamp(share * static_cast<double>(points), 0.0, last));
  };
  const std::uint64_t compacted_until = trace.compacted_until();
  const std::size_t first_known =
      options.first < compacted_until ? interval_at(trace.integrity().compacted_until_ns) : 0;

  const std::uint64_t first_sequence = std::max(options.first, compacted_until);
  const std::uint64_t before = first_sequence ? first_sequence - 1 : 0;

  std::vector<GroupLevels> levels;
  const auto add_devices = [&](std::size_t devices) {
    while (levels.size() < devices) {
      levels.emplace_back(roles, levels.size(), options).start(first_known, before);
    }
  };
  const auto ignore = [](const Event&, std::uint64_t, std::int64_t, const Change&) {};
  while (cursor.consumed_until() < options.first && cursor.consume_chunk(options.first, nullptr, ignore)) {
  }
  add_devices(std::max(options.devices, cursor.replay().devices().size()));
  for (std::size_t device = 0; device < cursor.replay().devices().size(); ++device) {
    levels[device].count_all(cursor.replay().devices()[device], before);
    levels[device].start(first_known, before);
  }
  const auto on_event = [&](const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Change& change) {
    if (change.device < 0) return;
    const auto device = static_cast<std::size_t>(change.device);
    add_devices(device + 1);
    levels[device].complete(interval_at(time_ns));
    const DeviceMemory& memory = cursor.replay().devices()[device];
    if (event.kind == EventKind::kAlloc) {
      levels[device].add_last(memory, sequence);
    } else if (change.replaces_state) {
      levels[device].count_all(memory, sequence);
    } else if (memory.last_freed().alloc_sequence != UINT64_MAX) {
      levels[device].remove(memory.last_freed(), sequence);
    }
  };
  if (options.until == UINT64_MAX) cursor.decode_in_background();
  const std::size_t chunks = trace.chunks().size();
  do {
    if (progress) progress(static_cast<double>(cursor.chunk()) / static_cast<double>(std::max<std::size_t>(chunks, 1)));
  } while (cursor.consume_chunk(options.until, nullptr, on_event));
  std::vector<GroupTimeline> timelines;
  for (GroupLevels& of_device : levels) {
    of_device.complete(points);
    timelines.push_back(of_device.release_timeline());
  }
  return timelines;
}

}  // namespace alloctrace
