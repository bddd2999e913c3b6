#include "follower.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "../format/event_codec.h"
#include "../format/fold.h"
#include "../format/spool_layout.h"
#include "../reading/block_reading.h"
#include "../reading/trace_reader.h"
#include "run_evidence.h"

namespace alloctrace {
namespace {

// How often a long way to the end is reported.
constexpr std::uint64_t kPublishEvery = 4'000'000;
constexpr std::size_t kIntervals = 240;                // of a curve; then each two become one
constexpr std::size_t kChanging = 256, kLargest = 64;  // stacks
constexpr std::size_t kShownFrames = 64, kHoldersLooked = 2000;

// Damage may make any number of a time: differences of two must not overflow.
std::int64_t possible_time(std::int64_t time_ns) {
  constexpr std::int64_t kLatest = std::int64_t{1} << 62;
  return std::clamp<std::int64_t>(time_ns, 0, kLatest);
}

void halve(std::vector<std::uint64_t>& curve) {
  for (std::size_t index = 0; index < curve.size(); ++index) {
    curve[index / 2] = index % 2 == 0 ? curve[index] : std::max(curve[index / 2], curve[index]);
  }
  curve.resize((curve.size() + 1) / 2);
}

}  // namespace

Follower::Follower(const std::string& path, std::function<void(const Followed&)> publish)
    : file_(path), publish_(std::move(publish)), replay_(definitions_) {
  constexpr double kSeconds = 0.25;
  definitions_.fix_synthetic_stacks();
  points_.reset(kSeconds);
}

void Follower::advance(const std::atomic<bool>& cancelled) {
  seen_.read_at_ns = static_cast<std::int64_t>(clock_nanoseconds(CLOCK_REALTIME));
  file_.refresh();
  std::optional<SpoolContents> spool;
  // Before the file, as TraceReader does: what moves from one to the other in between is then in both.
  if (!spool_path_.empty()) {
    spool = read_spool(spool_path_, file_.session_id());
    file_.refresh();
  }
  definitions_.limit_ids(file_.size() + (spool ? spool->definitions.size() : 0));
  BlockHeader header{};
  Bytes payload;
  while (!cancelled && file_.next(header, payload)) {
    take_block(header, payload, file_.at_end() && !spool);
    if (unpublished_ >= kPublishEvery) publish(false);
  }
  if (spool && !cancelled) take_spool(*spool);
  ++seen_.readings;
  publish(!cancelled);
}

void Follower::take_block(const BlockHeader& header, const Bytes& payload, bool is_last) {
  merge_counters(seen_.counters, header.counters);
  try {
    switch (header.type) {
      case BlockType::kHeader:
        header_json_.assign(payload.begin(), payload.end());
        break;
      case BlockType::kDefinitions:
      case BlockType::kDictionary:
        definitions_.add(payload.data(), payload.size());
        definitions_are_new_ = true;
        break;
      case BlockType::kEvents: {
        if (header.event_count > header.payload_bytes / 2) throw DecodeError("more events than bytes for them");
        const bool decides = !undecided_.empty() && *undecided_.begin() < header.first_sequence + header.event_count;
        if (header.first_sequence + header.event_count <= next_sequence_ && !decides) break;
        std::vector<Event> events;
        decode_events(payload.data(), payload.size(), header.event_count, header.begin.counter, events);
        take_events(events, header.first_sequence, header.begin, header.end, is_last);
        break;
      }
      case BlockType::kCompacted:
        take_fold(header, payload);
        break;
      case BlockType::kEnd:
        seen_.ended = true;
        break;
      default:
        break;
    }
  } catch (const DecodeError&) {
    ++seen_.damaged;
  }
  note_clock(header.end);
}

// Events that were folded before they were followed: the memory, its peaks and the steps are known, curves and growth
// go on from there.
void Follower::take_fold(const BlockHeader& header, const Bytes& payload) {
  ByteReader reader(payload);
  const CompactionSummary summary = CompactionSummary::read(reader, header.first_sequence);
  if (summary.version != CompactionSummary::kVersion) throw unsupported_compaction(file_.path(), summary.version);
  if (summary.until <= next_sequence_) return;
  if (std::exchange(definitions_are_new_, false)) definitions_.limit_depth();
  FoldReader parts(reader, definitions_);
  FoldReader state = parts.section(), evidence = parts.section();
  Replay folded(definitions_);
  folded.restore(state);
  const CompactedSums sums = RunEvidence::read_sums(evidence);
  // Devices are never given up, and keep their order: what is known of each goes on.
  const auto is_same = [](const FollowedDevice& known, const DeviceMemory& memory) {
    return known.device_type == memory.device_type() && known.device_index == memory.device_index();
  };
  if (seen_.devices.size() > folded.devices().size() ||
      !std::equal(seen_.devices.begin(), seen_.devices.end(), folded.devices().begin(), is_same)) {
    throw DecodeError("a compacted part of other devices than were there");
  }
  replay_ = std::move(folded);
  seen_.missing_events += summary.missing;
  seen_.events = next_sequence_ = summary.until;
  seen_.end_ns = std::max(seen_.end_ns, possible_time(summary.time_ns));
  says_steps_ = sums.steps_reported != 0;
  seen_.steps = says_steps_ ? sums.steps_reported : sums.steps_inferred;
  seen_.points_are_steps = seen_.steps != 0;
  if (seen_.points_are_steps) points_.reset(1);
  for (std::size_t index = 0; index < replay_.devices().size(); ++index) {
    FollowedDevice& of = device(index);
    if (index >= sums.peaks.size()) continue;
    of.peak_allocated = std::max(of.peak_allocated, sums.peaks[index].first.bytes);
    of.peak_reserved = std::max(of.peak_reserved, sums.peaks[index].second.bytes);
  }
}

void Follower::take_spool(const SpoolContents& spool) {
  try {
    definitions_.add(spool.definitions.data(), spool.definitions.size());
    definitions_are_new_ = true;
  } catch (const DecodeError&) {
    ++seen_.damaged;
  }
  merge_counters(seen_.counters, spool.counters);
  for (std::size_t run = 0; run < spool.runs.size(); ++run) {
    const SpoolContents::Run& events = spool.runs[run];
    // A break is a hook in progress: what follows it comes the next time, from the file perhaps.
    if (events.first_sequence > next_sequence_) break;
    std::vector<Event> copy = events.events;
    const std::uint64_t known = next_sequence_;
    take_events(copy, events.first_sequence, last_anchor_, spool.anchor, true);
    for (std::size_t index = 0; index < copy.size(); ++index) {
      const std::uint64_t sequence = events.first_sequence + index;
      if (sequence >= known && copy[index].kind == EventKind::kFreeRequested &&
          copy[index].commit == commit_mark(sequence)) {
        undecided_.insert(sequence);
      }
    }
  }
  note_clock(spool.anchor);
}

void Follower::take_events(std::vector<Event>& events, std::uint64_t first, const ClockAnchor& begin,
                           const ClockAnchor& end, bool is_last) {
  if (std::exchange(definitions_are_new_, false)) definitions_.limit_depth();
  if (first > next_sequence_) {
    seen_.missing_events += first - next_sequence_;
    replay_.note_loss();
    next_sequence_ = first;
  }
  const std::uint64_t known = next_sequence_ - first;
  complete_frees(events, first, std::min<std::uint64_t>(known, events.size()));
  if (known >= events.size()) return;
  if (first_anchor_.counter == 0) note_clock(begin);
  const double slope = begin.counter < end.counter && end.monotonic_ns > begin.monotonic_ns + 1'000'000
                           ? static_cast<double>(end.monotonic_ns - begin.monotonic_ns) /
                                 static_cast<double>(end.counter - begin.counter)
                           : counter_nanoseconds();
  const auto time_of = [&](std::uint64_t counter) {
    constexpr double kFarthest = 1e18;  // what is damaged may be anything
    const double since = static_cast<double>(static_cast<std::int64_t>(counter - begin.counter)) * slope;
    return possible_time(static_cast<std::int64_t>(
        first_anchor_.wall_ns + (begin.monotonic_ns - first_anchor_.monotonic_ns) +
        static_cast<std::uint64_t>(static_cast<std::int64_t>(std::clamp(since, -kFarthest, kFarthest)))));
  };
  std::size_t last_step = SIZE_MAX;
  if (is_last) {
    const auto is_step = [](const Event& event) { return event.kind == EventKind::kStep; };
    const auto found = std::find_if(events.rbegin(), events.rend(), is_step);
    if (found != events.rend()) last_step = static_cast<std::size_t>(events.rend() - found) - 1;
  }
  for (std::size_t index = known; index < events.size(); ++index) {
    Event& event = events[index];
    if (event.stack >= definitions_.frame_count()) event.stack = 0;
    if (event.location >= definitions_.location_count()) event.location = 0;
    if (event.node_type >= definitions_.node_type_count()) event.node_type = 0;
    take_event(event, first + index, time_of(event.time), index == last_step);
  }
  next_sequence_ = first + events.size();
  seen_.events = next_sequence_;
  unpublished_ += events.size();
  const double seconds = static_cast<double>(std::max<std::int64_t>(seen_.end_ns - seen_.begin_ns, 0)) / 1e9;
  if (seen_.steps > 0 || replay_.devices().empty()) return;
  if (points_.is_due(seconds)) {
    points_.add(seconds, live_bytes(replay_.devices()));
  } else if (is_last) {
    points_.set_latest(seconds, live_bytes(replay_.devices()));
  }
}

void Follower::complete_frees(std::vector<Event>& events, std::uint64_t first, std::uint64_t known) {
  for (auto at = undecided_.lower_bound(first); at != undecided_.end() && *at < first + known;) {
    Event& event = events[*at - first];
    if (event.commit == commit_mark(*at)) {  // in the spool, as it was
      ++at;
      continue;
    }
    if (event.kind == EventKind::kFreeCompleted) take_event(event, *at, seen_.end_ns, false);
    at = undecided_.erase(at);
  }
}

void Follower::take_event(Event& event, std::uint64_t sequence, std::int64_t time_ns, bool is_last_step) {
  const Change change = replay_.apply(event, sequence, time_ns, nullptr);
  seen_.end_ns = std::max(seen_.end_ns, time_ns);
  if (event.kind == EventKind::kStep) take_step(event, is_last_step);
  const Location& where = definitions_.location(event.location);
  if (event.kind == EventKind::kOom || event.kind == EventKind::kMemory) {
    const DeviceMemory* const memory = replay_.find(where.device_type, where.device_index);
    if (!memory) return;
    FollowedDevice& of = device(static_cast<std::size_t>(memory - replay_.devices().data()));
    if (event.kind == EventKind::kOom) {
      ++of.refused;
    } else if (const MemoryFields fields(event); fields.used != kUnknownBytes && fields.total != kUnknownBytes) {
      of.driver_used = fields.used;
      of.driver_total = fields.total;
    }
  }
  if (change.device < 0) return;
  const auto index = static_cast<std::size_t>(change.device);
  FollowedDevice& of = device(index);
  const MemoryTotals& totals = replay_.devices()[index].totals();
  of.peak_allocated = std::max(of.peak_allocated, totals.allocated);
  of.peak_reserved = std::max(of.peak_reserved, totals.reserved);
  if (event.kind == EventKind::kAlloc) {
    ++of.allocations;
    of.allocated_in_all += event.size;
  }
  note_curve(index, time_ns);
}

void Follower::take_step(const Event& event, bool is_last) {
  const PositionFields fields(event);
  const bool is_said = fields.is_explicit != 0;
  if (is_said != says_steps_) {
    if (!is_said) return;
    says_steps_ = true;  // those that were inferred do not count
    seen_.steps = 0;
  }
  if (seen_.steps == 0) points_.reset(1);  // there were seconds, or steps that do not count
  seen_.last_step = fields.value;
  const auto at = static_cast<double>(++seen_.steps);
  seen_.points_are_steps = true;
  if (points_.is_due(at)) {
    points_.add(at, live_bytes(replay_.devices()));
  } else if (is_last) {
    points_.set_latest(at, live_bytes(replay_.devices()));
  }
}

FollowedDevice& Follower::device(std::size_t index) {
  while (seen_.devices.size() <= index) {
    const DeviceMemory& memory = replay_.devices()[seen_.devices.size()];
    FollowedDevice& made = seen_.devices.emplace_back();
    made.device_type = memory.device_type();
    made.device_index = memory.device_index();
    curve_.allocated.emplace_back(curve_.intervals);
    curve_.reserved.emplace_back(curve_.intervals);
  }
  return seen_.devices[index];
}

void Follower::note_curve(std::size_t device, std::int64_t time_ns) {
  const std::int64_t since = std::max<std::int64_t>(time_ns - seen_.begin_ns, 0);
  constexpr std::int64_t kLongest = std::int64_t{1} << 60;  // of a time that is damaged
  if (since > kLongest) return;
  auto interval = static_cast<std::size_t>(since / curve_.interval_ns);
  while (interval >= kIntervals) {
    for (auto& curve : curve_.allocated) halve(curve);
    for (auto& curve : curve_.reserved) halve(curve);
    curve_.intervals = (curve_.intervals + 1) / 2;
    curve_.interval_ns *= 2;
    interval = static_cast<std::size_t>(since / curve_.interval_ns);
  }
  if (interval >= curve_.intervals) {
    // An interval begins at the level of the end of the one before.
    curve_.intervals = interval + 1;
    for (std::size_t index = 0; index < curve_.allocated.size(); ++index) {
      const MemoryTotals& totals = replay_.devices()[index].totals();
      curve_.allocated[index].resize(curve_.intervals, totals.allocated);
      curve_.reserved[index].resize(curve_.intervals, totals.reserved);
    }
  }
  const MemoryTotals& totals = replay_.devices()[device].totals();
  std::uint64_t& allocated = curve_.allocated[device][interval];
  std::uint64_t& reserved = curve_.reserved[device][interval];
  allocated = std::max(allocated, totals.allocated);
  reserved = std::max(reserved, totals.reserved);
}

void Follower::note_clock(const ClockAnchor& anchor) {
  if (anchor.counter == 0 || !is_plausible(anchor)) return;
  if (first_anchor_.counter == 0) {
    first_anchor_ = anchor;
    seen_.begin_ns = seen_.end_ns = static_cast<std::int64_t>(anchor.wall_ns);
  }
  if (anchor.monotonic_ns >= last_anchor_.monotonic_ns) last_anchor_ = anchor;
}

void Follower::publish(bool caught_up) {
  unpublished_ = 0;
  seen_.caught_up = caught_up;
  seen_.file_bytes = file_.size();
  seen_.curve_interval_ns = curve_.interval_ns;
  Followed known = seen_;
  known.damaged += file_.corrupt_blocks();
  const std::vector<const GrowthPoints::Point*> points = points_.later_half();
  for (const auto* point : points) known.points.push_back(point->at);
  for (std::size_t index = 0; index < known.devices.size(); ++index) {
    FollowedDevice& of = known.devices[index];
    DeviceMemory& memory = replay_.devices()[index];
    of.totals = memory.totals();
    of.reports_segments = memory.reports_segments();
    of.largest_free = memory.largest_free();
    of.curve_allocated = curve_.allocated[index];
    of.curve_reserved = curve_.reserved[index];
    for (const auto* point : points) {
      std::uint64_t sum = 0;
      if (index < point->bytes.size()) {
        for (const auto& [stack, bytes] : point->bytes[index]) sum += bytes;
      }
      of.requested.push_back(sum);
    }
  }
  add_stacks(known, points);
  publish_(known);
}

void Follower::add_stacks(Followed& known, const std::vector<const GrowthPoints::Point*>& points) {
  std::vector<FollowedStack> chosen;
  for (std::size_t index = 0; index < known.devices.size(); ++index) {
    std::map<std::uint32_t, FollowedStack> rows;
    const auto row_of = [&](std::uint32_t stack) -> FollowedStack& {
      FollowedStack& row = rows[stack];
      row.at_points.resize(points.size());
      return row;
    };
    for (std::size_t at = 0; at < points.size(); ++at) {
      if (index >= points[at]->bytes.size()) continue;
      for (const auto& [stack, bytes] : points[at]->bytes[index]) row_of(stack).at_points[at] = bytes;
    }
    replay_.devices()[index].for_each_allocated([&](const Piece& piece) {
      FollowedStack& row = row_of(piece.stack);
      row.bytes += piece.requested;
      ++row.blocks;
    });
    std::vector<FollowedStack> all;
    for (auto& [stack, row] : rows) {
      row.device = index;
      row.stack = stack;
      all.push_back(std::move(row));
    }
    const auto change = [](const FollowedStack& row) {
      if (row.at_points.empty()) return std::uint64_t{0};
      const auto [least, most] = std::minmax(row.at_points.front(), row.at_points.back());
      return most - least;
    };
    const auto changes_more = [&](const FollowedStack& one, const FollowedStack& other) {
      return change(one) > change(other);
    };
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(std::min(kChanging, all.size()));
    std::partial_sort(all.begin(), middle, all.end(), changes_more);
    const auto steady = std::find_if(all.begin(), middle, [&](const auto& row) { return change(row) == 0; });
    const auto holds_more = [](const FollowedStack& one, const FollowedStack& other) {
      return one.bytes > other.bytes;
    };
    const auto end = steady + std::min<std::ptrdiff_t>(kLargest, all.end() - steady);
    std::partial_sort(steady, end, all.end(), holds_more);
    all.erase(end, all.end());
    std::move(all.begin(), all.end(), std::back_inserter(known.stacks));
  }
  // Which stacks the pieces have that an object was found to hold; the latest look counts.
  std::map<std::pair<std::size_t, std::uint32_t>, const HolderRecord*> holders;
  const auto& found = definitions_.holders();
  const std::size_t first = found.size() - std::min(found.size(), kHoldersLooked);
  for (std::size_t at = first; at < found.size(); ++at) {
    for (std::size_t index = 0; index < replay_.devices().size(); ++index) {
      for (const std::uint64_t address : found[at].addresses) {
        const Piece* const piece = replay_.devices()[index].allocated_at(address);
        if (piece && piece->alloc_sequence < found[at].event) holders[{index, piece->stack}] = &found[at];
      }
    }
  }
  for (FollowedStack& row : known.stacks) {
    const auto holder = holders.find({row.device, row.stack});
    if (holder != holders.end()) row.holder = holder->second->holder;
    row.frames = frames_of(row.stack);
    if (row.frames->empty()) say_what_it_stands_for(row);
  }
}

// Kept: a stack's frames do not change, though the text of a line may come later than they do.
std::shared_ptr<const std::vector<FollowedFrame>> Follower::frames_of(std::uint32_t stack) {
  auto& kept = frames_[stack];
  const auto has_source = [](const FollowedFrame& frame) { return !frame.source.empty(); };
  if (kept && std::all_of(kept->begin(), kept->end(), has_source)) return kept;
  std::vector<FollowedFrame> frames;
  for (std::uint32_t id = stack; id != 0 && id < definitions_.frame_count() && frames.size() < kShownFrames;) {
    const FrameRecord& record = definitions_.frame(id);
    const Code& code = definitions_.code(record.code);
    FollowedFrame& frame = frames.emplace_back();
    frame.function = definitions_.string(code.qualified_name != 0 ? code.qualified_name : code.name);
    frame.filename = definitions_.string(code.filename);
    frame.line = definitions_.line(id);
    if (const std::string* const source = definitions_.source(code.filename, frame.line)) frame.source = *source;
    if (const std::string* const cell = definitions_.source(code.filename, 0)) frame.cell = *cell;
    id = record.parent;
  }
  kept = std::make_shared<const std::vector<FollowedFrame>>(std::move(frames));
  return kept;
}

void Follower::say_what_it_stands_for(FollowedStack& row) const {
  row.is_older = row.stack == definitions_.stack_before_recording();
  const auto& libraries = definitions_.library_names();
  for (std::uint32_t name = 0; name < libraries.size(); ++name) {
    if (row.stack == definitions_.stack_of_library(name)) row.library = libraries[name];
  }
  for (std::size_t type = 1; type < definitions_.node_type_count(); ++type) {
    const auto id = static_cast<std::uint16_t>(type);
    if (row.stack == definitions_.stack_of_node(id)) row.node = definitions_.node_type(id);
  }
}

}  // namespace alloctrace
