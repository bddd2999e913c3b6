#include "follower.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "../format/event_codec.h"
#include "../format/format.h"
#include "../reading/block_reading.h"
#include "../reading/trace_reader.h"
#include "run_evidence.h"

namespace alloctrace {
namespace {

// Events between two calls of `publish` during a reading.
constexpr std::uint64_t kPublishEvery = 4'000'000;
constexpr std::size_t kMaxIntervals = 240;                   // maximum of a curve; beyond, pairs are merged
constexpr std::size_t kMaxChanging = 256, kMaxLargest = 64;  // maximum stacks
constexpr std::size_t kMaxShownFrames = 64, kMaxHolders = 2000;

// Limit a time, which may be anything in a corrupt trace, so that differences do not overflow.
std::int64_t limit_time(std::int64_t time_ns) {
  constexpr std::int64_t kMaxTime = std::int64_t{1} << 62;
  return std::clamp<std::int64_t>(time_ns, 0, kMaxTime);
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
  results_.read_at_ns = static_cast<std::int64_t>(clock_nanoseconds(CLOCK_REALTIME));
  file_.refresh();
  std::optional<SpoolContents> spool;
  // Read the spool before the file, as TraceReader does: events that the writer moves meanwhile are then in both.
  if (!spool_path_.empty()) {
    spool = read_spool(spool_path_, file_.session_id());
    file_.refresh();
  }
  definitions_.limit_ids(file_.size() + (spool ? spool->definitions.size() : 0));
  BlockHeader header{};
  Bytes payload;
  while (!cancelled && file_.next(header, payload)) {
    apply_block(header, payload, file_.at_end() && !spool);
    if (unpublished_ >= kPublishEvery) publish(false);
  }
  if (spool && !cancelled) apply_spool(*spool);
  ++results_.readings;
  publish(!cancelled);
}

void Follower::apply_block(const BlockHeader& header, const Bytes& payload, bool is_last) {
  merge_counters(results_.counters, header.counters);
  try {
    switch (header.type) {
      case BlockType::kHeader:
        header_json_.assign(payload.begin(), payload.end());
        break;
      case BlockType::kDefinitions:
      case BlockType::kDictionary:
        definitions_.add(payload.data(), payload.size());
        has_new_definitions_ = true;
        break;
      case BlockType::kEvents: {
        if (header.event_count > header.payload_bytes / 2) throw DecodeError("more events than bytes for them");
        const bool has_pending =
            !pending_frees_.empty() && *pending_frees_.begin() < header.first_sequence + header.event_count;
        if (header.first_sequence + header.event_count <= next_sequence_ && !has_pending) break;
        std::vector<Event> events;
        decode_events(payload.data(), payload.size(), header.event_count, header.begin.counter, events);
        apply_events(events, header.first_sequence, header.begin, header.end, is_last);
        break;
      }
      case BlockType::kCompacted:
        restore_compacted(header, payload);
        break;
      case BlockType::kEnd:
        results_.ended = true;
        break;
      default:
        break;
    }
  } catch (const DecodeError&) {
    ++results_.damaged;
  }
  note_clock(header.end);
}

// Restore memory, peaks and steps of events that were compacted unread. Curves and growth continue after them.
void Follower::restore_compacted(const BlockHeader& header, const Bytes& payload) {
  ByteReader reader(payload);
  const CompactionSummary summary = CompactionSummary::read(reader, header.first_sequence);
  if (summary.version != CompactionSummary::kVersion) throw unsupported_compaction(file_.path(), summary.version);
  if (summary.until <= next_sequence_) return;
  if (std::exchange(has_new_definitions_, false)) definitions_.limit_depth();
  CompactionReader sections(reader, definitions_);
  CompactionReader state = sections.section(), evidence = sections.section();
  Replay compacted(definitions_);
  compacted.restore(state);
  const CompactedSums sums = RunEvidence::read_sums(evidence);
  // Devices are never removed or reordered, so the results of each continue.
  const auto is_same = [](const FollowedDevice& followed, const DeviceMemory& memory) {
    return followed.device_type == memory.device_type() && followed.device_index == memory.device_index();
  };
  if (results_.devices.size() > compacted.devices().size() ||
      !std::equal(results_.devices.begin(), results_.devices.end(), compacted.devices().begin(), is_same)) {
    throw DecodeError("a compacted part with other devices than before");
  }
  replay_ = std::move(compacted);
  results_.missing_events += summary.missing;
  results_.events = next_sequence_ = summary.until;
  results_.end_ns = std::max(results_.end_ns, limit_time(summary.time_ns));
  has_reported_steps_ = sums.steps_reported != 0;
  results_.steps = has_reported_steps_ ? sums.steps_reported : sums.steps_inferred;
  results_.points_are_steps = results_.steps != 0;
  if (results_.points_are_steps) points_.reset(1);
  for (std::size_t index = 0; index < replay_.devices().size(); ++index) {
    FollowedDevice& followed = device(index);
    if (index >= sums.peaks.size()) continue;
    followed.peak_allocated = std::max(followed.peak_allocated, sums.peaks[index].first.bytes);
    followed.peak_reserved = std::max(followed.peak_reserved, sums.peaks[index].second.bytes);
  }
}

void Follower::apply_spool(const SpoolContents& spool) {
  try {
    definitions_.add(spool.definitions.data(), spool.definitions.size());
    has_new_definitions_ = true;
  } catch (const DecodeError&) {
    ++results_.damaged;
  }
  merge_counters(results_.counters, spool.counters);
  for (std::size_t run = 0; run < spool.runs.size(); ++run) {
    const SpoolContents::Run& events = spool.runs[run];
    // A gap is a hook in progress: later events are left to the next reading, perhaps from the file.
    if (events.first_sequence > next_sequence_) break;
    std::vector<Event> copy = events.events;
    const std::uint64_t first_new = next_sequence_;
    apply_events(copy, events.first_sequence, last_anchor_, spool.anchor, true);
    for (std::size_t index = 0; index < copy.size(); ++index) {
      const std::uint64_t sequence = events.first_sequence + index;
      if (sequence >= first_new && copy[index].kind == EventKind::kFreeRequested &&
          copy[index].commit == commit_mark(sequence)) {
        pending_frees_.insert(sequence);
      }
    }
  }
  note_clock(spool.anchor);
}

void Follower::apply_events(std::vector<Event>& events, std::uint64_t first, const ClockAnchor& begin,
                            const ClockAnchor& end, bool is_last) {
  if (std::exchange(has_new_definitions_, false)) definitions_.limit_depth();
  if (first > next_sequence_) {
    results_.missing_events += first - next_sequence_;
    replay_.note_loss();
    next_sequence_ = first;
  }
  const std::uint64_t read_before = next_sequence_ - first;
  complete_frees(events, first, std::min<std::uint64_t>(read_before, events.size()));
  if (read_before >= events.size()) return;
  if (first_anchor_.counter == 0) note_clock(begin);
  const double slope = begin.counter < end.counter && end.monotonic_ns > begin.monotonic_ns + 1'000'000
                           ? static_cast<double>(end.monotonic_ns - begin.monotonic_ns) /
                                 static_cast<double>(end.counter - begin.counter)
                           : counter_nanoseconds();
  const auto time_of = [&](std::uint64_t counter) {
    constexpr double kMaxNs = 1e18;  // a corrupt counter may be anything
    const double since = static_cast<double>(static_cast<std::int64_t>(counter - begin.counter)) * slope;
    return limit_time(static_cast<std::int64_t>(
        first_anchor_.wall_ns + (begin.monotonic_ns - first_anchor_.monotonic_ns) +
        static_cast<std::uint64_t>(static_cast<std::int64_t>(std::clamp(since, -kMaxNs, kMaxNs)))));
  };
  std::size_t last_step = SIZE_MAX;
  if (is_last) {
    const auto is_step = [](const Event& event) { return event.kind == EventKind::kStep; };
    const auto step = std::find_if(events.rbegin(), events.rend(), is_step);
    if (step != events.rend()) last_step = static_cast<std::size_t>(events.rend() - step) - 1;
  }
  for (std::size_t index = read_before; index < events.size(); ++index) {
    Event& event = events[index];
    if (event.stack >= definitions_.frame_count()) event.stack = 0;
    if (event.location >= definitions_.location_count()) event.location = 0;
    if (event.node_type >= definitions_.node_type_count()) event.node_type = 0;
    apply_event(event, first + index, time_of(event.time), index == last_step);
  }
  next_sequence_ = first + events.size();
  results_.events = next_sequence_;
  unpublished_ += events.size();
  const double seconds = static_cast<double>(std::max<std::int64_t>(results_.end_ns - results_.begin_ns, 0)) / 1e9;
  if (results_.steps > 0 || replay_.devices().empty()) return;
  if (points_.is_due(seconds)) {
    points_.add(seconds, live_bytes(replay_.devices()));
  } else if (is_last) {
    points_.set_latest(seconds, live_bytes(replay_.devices()));
  }
}

void Follower::complete_frees(std::vector<Event>& events, std::uint64_t first, std::uint64_t read_before) {
  for (auto at = pending_frees_.lower_bound(first); at != pending_frees_.end() && *at < first + read_before;) {
    Event& event = events[*at - first];
    if (event.commit == commit_mark(*at)) {  // not completed in the spool
      ++at;
      continue;
    }
    if (event.kind == EventKind::kFreeCompleted) apply_event(event, *at, results_.end_ns, false);
    at = pending_frees_.erase(at);
  }
}

void Follower::apply_event(Event& event, std::uint64_t sequence, std::int64_t time_ns, bool is_last_step) {
  extend_curve(time_ns);
  const Change change = replay_.apply(event, sequence, time_ns, nullptr);
  results_.end_ns = std::max(results_.end_ns, time_ns);
  if (event.kind == EventKind::kStep) note_step(event, is_last_step);
  const Location& where = definitions_.location(event.location);
  if (event.kind == EventKind::kOom || event.kind == EventKind::kMemory) {
    const DeviceMemory* const memory = replay_.find(where.device_type, where.device_index);
    if (!memory) return;
    FollowedDevice& followed = device(static_cast<std::size_t>(memory - replay_.devices().data()));
    if (event.kind == EventKind::kOom) {
      ++followed.refused;
    } else if (const MemoryFields fields(event); fields.used != kUnknownBytes && fields.total != kUnknownBytes) {
      followed.driver_used = fields.used;
      followed.driver_total = fields.total;
    }
  }
  if (change.device < 0) return;
  const auto index = static_cast<std::size_t>(change.device);
  FollowedDevice& followed = device(index);
  const MemoryTotals& totals = replay_.devices()[index].totals();
  followed.peak_allocated = std::max(followed.peak_allocated, totals.allocated);
  followed.peak_reserved = std::max(followed.peak_reserved, totals.reserved);
  if (event.kind == EventKind::kAlloc) {
    ++followed.allocations;
    followed.allocated_in_all += event.size;
  }
  note_level(index, time_ns);
}

void Follower::note_step(const Event& event, bool is_last) {
  const PositionFields fields(event);
  const bool is_reported = fields.is_explicit != 0;
  if (is_reported != has_reported_steps_) {
    if (!is_reported) return;
    has_reported_steps_ = true;  // inferred steps no longer count
    results_.steps = 0;
  }
  if (results_.steps == 0) points_.reset(1);  // drops points at seconds or inferred steps
  results_.last_step = fields.value;
  const auto at = static_cast<double>(++results_.steps);
  results_.points_are_steps = true;
  if (points_.is_due(at)) {
    points_.add(at, live_bytes(replay_.devices()));
  } else if (is_last) {
    points_.set_latest(at, live_bytes(replay_.devices()));
  }
}

FollowedDevice& Follower::device(std::size_t index) {
  while (results_.devices.size() <= index) {
    const DeviceMemory& memory = replay_.devices()[results_.devices.size()];
    FollowedDevice& followed = results_.devices.emplace_back();
    followed.device_type = memory.device_type();
    followed.device_index = memory.device_index();
    curve_.allocated.emplace_back(curve_.intervals);
    curve_.reserved.emplace_back(curve_.intervals);
  }
  return results_.devices[index];
}

void Follower::extend_curve(std::int64_t time_ns) {
  const std::int64_t since = std::max<std::int64_t>(time_ns - results_.begin_ns, 0);
  constexpr std::int64_t kMaxNs = std::int64_t{1} << 60;  // a corrupt time may be later
  if (since > kMaxNs) return;
  auto interval = static_cast<std::size_t>(since / curve_.interval_ns);
  while (interval >= kMaxIntervals) {
    for (auto& curve : curve_.allocated) halve(curve);
    for (auto& curve : curve_.reserved) halve(curve);
    curve_.intervals = (curve_.intervals + 1) / 2;
    curve_.interval_ns *= 2;
    interval = static_cast<std::size_t>(since / curve_.interval_ns);
  }
  if (interval < curve_.intervals) return;
  curve_.intervals = interval + 1;
  for (std::size_t index = 0; index < curve_.allocated.size(); ++index) {
    const MemoryTotals& totals = replay_.devices()[index].totals();
    curve_.allocated[index].resize(curve_.intervals, totals.allocated);
    curve_.reserved[index].resize(curve_.intervals, totals.reserved);
  }
}

void Follower::note_level(std::size_t device, std::int64_t time_ns) {
  const std::int64_t since = std::max<std::int64_t>(time_ns - results_.begin_ns, 0);
  const auto interval = static_cast<std::size_t>(since / curve_.interval_ns);
  if (interval >= curve_.intervals) return;  // a corrupt time
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
    results_.begin_ns = results_.end_ns = static_cast<std::int64_t>(anchor.wall_ns);
  }
  if (anchor.monotonic_ns >= last_anchor_.monotonic_ns) last_anchor_ = anchor;
}

void Follower::publish(bool caught_up) {
  unpublished_ = 0;
  results_.caught_up = caught_up;
  results_.file_bytes = file_.size();
  results_.curve_interval_ns = curve_.interval_ns;
  Followed results = results_;
  results.damaged += file_.corrupt_blocks();
  const std::vector<const GrowthPoints::Point*> points = points_.later_half();
  for (const auto* point : points) results.points.push_back(point->at);
  for (std::size_t index = 0; index < results.devices.size(); ++index) {
    FollowedDevice& followed = results.devices[index];
    DeviceMemory& memory = replay_.devices()[index];
    followed.totals = memory.totals();
    followed.reports_segments = memory.reports_segments();
    followed.largest_free = memory.largest_free();
    followed.curve_allocated = curve_.allocated[index];
    followed.curve_reserved = curve_.reserved[index];
    for (const auto* point : points) {
      std::uint64_t sum = 0;
      if (index < point->bytes.size()) {
        for (const auto& [stack, bytes] : point->bytes[index]) sum += bytes;
      }
      followed.requested.push_back(sum);
    }
  }
  add_stacks(results, points);
  publish_(results);
}

void Follower::add_stacks(Followed& results, const std::vector<const GrowthPoints::Point*>& points) {
  std::vector<FollowedStack> chosen;
  for (std::size_t index = 0; index < results.devices.size(); ++index) {
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
      const auto [smaller, larger] = std::minmax(row.at_points.front(), row.at_points.back());
      return larger - smaller;
    };
    const auto changes_more = [&](const FollowedStack& a, const FollowedStack& b) { return change(a) > change(b); };
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(std::min(kMaxChanging, all.size()));
    std::partial_sort(all.begin(), middle, all.end(), changes_more);
    const auto steady = std::find_if(all.begin(), middle, [&](const auto& row) { return change(row) == 0; });
    const auto holds_more = [](const FollowedStack& a, const FollowedStack& b) { return a.bytes > b.bytes; };
    const auto end = steady + std::min<std::ptrdiff_t>(kMaxLargest, all.end() - steady);
    std::partial_sort(steady, end, all.end(), holds_more);
    all.erase(end, all.end());
    std::move(all.begin(), all.end(), std::back_inserter(results.stacks));
  }
  // Referrer paths by stack, from the object scans; the latest scan counts.
  std::map<std::pair<std::size_t, std::uint32_t>, const HolderRecord*> holders;
  const auto& records = definitions_.holders();
  const std::size_t first = records.size() - std::min(records.size(), kMaxHolders);
  for (std::size_t at = first; at < records.size(); ++at) {
    for (std::size_t index = 0; index < replay_.devices().size(); ++index) {
      for (const std::uint64_t address : records[at].addresses) {
        const Piece* const piece = replay_.devices()[index].find_allocated(address);
        if (piece && piece->alloc_sequence < records[at].event) holders[{index, piece->stack}] = &records[at];
      }
    }
  }
  for (FollowedStack& row : results.stacks) {
    const auto holder = holders.find({row.device, row.stack});
    if (holder != holders.end()) row.holder = holder->second->holder;
    row.frames = frames_of(row.stack);
    if (row.frames->empty()) describe_origin(row);
  }
}

// Return the frames of a stack. They are cached once all their source lines, which may come later, are known.
std::shared_ptr<const std::vector<FollowedFrame>> Follower::frames_of(std::uint32_t stack) {
  auto& cached = frames_[stack];
  const auto has_source = [](const FollowedFrame& frame) { return !frame.source.empty(); };
  if (cached && std::all_of(cached->begin(), cached->end(), has_source)) return cached;
  std::vector<FollowedFrame> frames;
  for (std::uint32_t id = stack; id != 0 && id < definitions_.frame_count() && frames.size() < kMaxShownFrames;) {
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
  cached = std::make_shared<const std::vector<FollowedFrame>>(std::move(frames));
  return cached;
}

void Follower::describe_origin(FollowedStack& row) const {
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
