#include "stack_rows.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace alloctrace {
namespace {

constexpr std::size_t kMaxChanging = 256, kMaxLargest = 64;  // maximum stacks of a device
constexpr std::size_t kMaxShownFrames = 64, kMaxHolders = 2000;

std::uint64_t change_of(const FollowedStack& row) {
  if (row.at_points.empty()) return 0;
  const auto [smaller, larger] = std::minmax(row.at_points.front(), row.at_points.back());
  return larger - smaller;
}

// Return the rows of all stacks of a device that had bytes at a point, or have some now.
std::vector<FollowedStack> all_rows(std::size_t index, const DeviceMemory& memory,
                                    const std::vector<const GrowthPoints::Point*>& points) {
  std::map<std::uint32_t, FollowedStack> rows;
  const auto row_of = [&](std::uint32_t stack) -> FollowedStack& {
    FollowedStack& row = rows[stack];
    row.device = index;
    row.stack = stack;
    row.at_points.resize(points.size());
    return row;
  };
  for (std::size_t at = 0; at < points.size(); ++at) {
    if (index >= points[at]->bytes.size()) continue;
    for (const auto& [stack, bytes] : points[at]->bytes[index]) row_of(stack).at_points[at] = bytes;
  }
  memory.for_each_allocated([&](const Piece& piece) {
    FollowedStack& row = row_of(piece.stack);
    row.bytes += piece.requested;
    ++row.blocks;
  });
  std::vector<FollowedStack> all;
  for (auto& [stack, row] : rows) all.push_back(std::move(row));
  return all;
}

// Keep the rows with the largest changes, and of the others the largest.
void keep_top(std::vector<FollowedStack>& rows) {
  const auto changes_more = [](const FollowedStack& a, const FollowedStack& b) { return change_of(a) > change_of(b); };
  const auto holds_more = [](const FollowedStack& a, const FollowedStack& b) { return a.bytes > b.bytes; };
  const auto middle = rows.begin() + static_cast<std::ptrdiff_t>(std::min(kMaxChanging, rows.size()));
  std::partial_sort(rows.begin(), middle, rows.end(), changes_more);
  const auto steady = std::find_if(rows.begin(), middle, [](const auto& row) { return change_of(row) == 0; });
  const auto end = steady + std::min<std::ptrdiff_t>(kMaxLargest, rows.end() - steady);
  std::partial_sort(steady, end, rows.end(), holds_more);
  rows.erase(end, rows.end());
}

}  // namespace

std::vector<FollowedStack> StackRows::list(const std::vector<DeviceMemory>& devices,
                                           const std::vector<const GrowthPoints::Point*>& points) {
  std::vector<FollowedStack> rows;
  for (std::size_t index = 0; index < devices.size(); ++index) {
    std::vector<FollowedStack> of_device = all_rows(index, devices[index], points);
    keep_top(of_device);
    std::move(of_device.begin(), of_device.end(), std::back_inserter(rows));
  }
  add_holders(rows, devices);
  for (FollowedStack& row : rows) {
    row.frames = frames_of(row.stack);
    if (row.frames->empty()) describe_origin(row);
  }
  return rows;
}

// Set the referrer path of the object that held half of a stack's bytes or more at the latest object scan with blocks
// of the stack. Records have a sample of the addresses.
void StackRows::add_holders(std::vector<FollowedStack>& rows, const std::vector<DeviceMemory>& devices) const {
  struct Held {
    std::uint64_t event = 0;
    std::map<const HolderRecord*, double> bytes;
  };
  std::map<std::pair<std::size_t, std::uint32_t>, Held> held_by_stack;
  const auto& records = definitions_->holders();
  const std::size_t first = records.size() - std::min(records.size(), kMaxHolders);
  for (std::size_t at = first; at < records.size(); ++at) {
    for (std::size_t index = 0; index < devices.size(); ++index) {
      for (const std::uint64_t address : records[at].addresses) {
        const Piece* const piece = devices[index].find_allocated(address);
        if (!piece || piece->alloc_sequence >= records[at].event) continue;
        Held& held = held_by_stack[{index, piece->stack}];
        if (held.event != records[at].event) held = {records[at].event, {}};
        const double scale = static_cast<double>(records[at].count) / static_cast<double>(records[at].addresses.size());
        held.bytes[&records[at]] += scale * static_cast<double>(piece->requested);
      }
    }
  }
  for (FollowedStack& row : rows) {
    const auto held = held_by_stack.find({row.device, row.stack});
    if (held == held_by_stack.end()) continue;
    for (const auto& [record, bytes] : held->second.bytes) {
      if (2 * bytes >= static_cast<double>(row.bytes)) row.holder = record->holder;
    }
  }
}

// Return the frames of a stack. They are cached once all their source lines, which may come later, are known.
std::shared_ptr<const std::vector<FollowedFrame>> StackRows::frames_of(std::uint32_t stack) {
  auto& cached = frames_[stack];
  const auto has_source = [](const FollowedFrame& frame) { return !frame.source.empty(); };
  if (cached && std::all_of(cached->begin(), cached->end(), has_source)) return cached;
  std::vector<FollowedFrame> frames;
  for (std::uint32_t id = stack; id != 0 && id < definitions_->frame_count() && frames.size() < kMaxShownFrames;) {
    const FrameRecord& record = definitions_->frame(id);
    const Code& code = definitions_->code(record.code);
    FollowedFrame& frame = frames.emplace_back();
    frame.function = definitions_->string(code.qualified_name != 0 ? code.qualified_name : code.name);
    frame.filename = definitions_->string(code.filename);
    frame.line = definitions_->line(id);
    if (const std::string* const source = definitions_->source(code.filename, frame.line)) frame.source = *source;
    if (const std::string* const cell = definitions_->source(code.filename, 0)) frame.cell = *cell;
    id = record.parent;
  }
  cached = std::make_shared<const std::vector<FollowedFrame>>(std::move(frames));
  return cached;
}

void StackRows::describe_origin(FollowedStack& row) const {
  const StackOrigin origin = definitions_->origin_of(row.stack);
  row.is_older = origin.kind == StackOrigin::Kind::kBeforeRecording;
  if (origin.kind == StackOrigin::Kind::kLibrary) row.library = definitions_->library_names()[origin.index];
  if (origin.kind == StackOrigin::Kind::kNode) row.node = definitions_->node_type(origin.index);
}

}  // namespace alloctrace
