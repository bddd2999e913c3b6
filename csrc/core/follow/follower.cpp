#include "follower.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "../format/event_codec.h"
#include "../format/format.h"
#include "../reading/block_scanner.h"
#include "../replay/run_evidence.h"

namespace alloctrace {
namespace {

// Events between two calls of `publish` during a reading.
constexpr std::uint64_t kPublishEvery = 4'000'000;

// Limit a time, which may be anything in a corrupt trace, so that differences do not overflow.
std::int64_t limit_time(std::int64_t time_ns) {
  constexpr std::int64_t kMaxTime = std::int64_t{1} << 62;
  return std::clamp<std::int64_t>(time_ns, 0, kMaxTime);
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
  FileBlock block;
  while (!cancelled && file_.next(block)) {
    apply_block(block.header, block.payload, file_.at_end() && !spool);
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
    ++results_.corrupt_blocks;
  }
  add_anchor(header.end);
}

// Restore memory, peaks and steps of events that were compacted unread. Curves and growth continue after them.
void Follower::restore_compacted(const BlockHeader& header, const Bytes& payload) {
  ByteReader reader(payload);
  const CompactionSummary summary = CompactionSummary::read(reader, header.first_sequence);
  check_compaction_version(summary.version, file_.path());
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
    ++results_.corrupt_blocks;
  }
  merge_counters(results_.counters, spool.counters);
  for (std::size_t run = 0; run < spool.runs.size(); ++run) {
    const SpoolContents::Run& events = spool.runs[run];
    // A gap is a hook in progress: later events are left to the next reading, perhaps from the file.
    if (events.first_sequence > next_sequence_) break;
    std::vector<Event> copy = events.events;
    const std::uint64_t first_new = next_sequence_;
    apply_events(copy, events.first_sequence, clock_.last(), spool.anchor, true);
    for (std::size_t index = 0; index < copy.size(); ++index) {
      const std::uint64_t sequence = events.first_sequence + index;
      if (sequence >= first_new && copy[index].kind == EventKind::kFreeRequested &&
          copy[index].commit == commit_mark(sequence)) {
        pending_frees_.insert(sequence);
      }
    }
  }
  add_anchor(spool.anchor);
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
  if (clock_.first().counter == 0) add_anchor(begin);
  const ChunkClock clock = clock_.between(begin, end);
  std::size_t last_step = SIZE_MAX;
  if (is_last) {
    const auto is_step = [](const Event& event) { return event.kind == EventKind::kStep; };
    const auto step = std::find_if(events.rbegin(), events.rend(), is_step);
    if (step != events.rend()) last_step = static_cast<std::size_t>(events.rend() - step) - 1;
  }
  for (std::size_t index = read_before; index < events.size(); ++index) {
    Event& event = events[index];
    definitions_.clear_undefined_ids(event);
    apply_event(event, first + index, limit_time(clock.wall_ns(event.time)), index == last_step);
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
  curve_.extend(time_ns, replay_.devices());
  const Change change = replay_.apply(event, sequence, time_ns, nullptr);
  results_.end_ns = std::max(results_.end_ns, time_ns);
  if (event.kind == EventKind::kStep) note_step(event, is_last_step);
  const Location& where = definitions_.location(event.location);
  if (event.kind == EventKind::kOom || event.kind == EventKind::kMemory) {
    const DeviceMemory* const memory = replay_.find(where.device_type, where.device_index);
    if (!memory) return;
    FollowedDevice& followed = device(static_cast<std::size_t>(memory - replay_.devices().data()));
    if (event.kind == EventKind::kOom) {
      ++followed.failed_allocations;
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
    followed.total_requested += event.size;
  }
  curve_.add_level(index, time_ns, totals);
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
    curve_.add_device();
  }
  return results_.devices[index];
}

void Follower::add_anchor(const ClockAnchor& anchor) {
  const bool is_first = clock_.first().counter == 0;
  clock_.add(anchor);
  if (!is_first || clock_.first().counter == 0) return;
  results_.begin_ns = results_.end_ns = clock_.begin_ns();
  curve_.begin(results_.begin_ns);
}

void Follower::publish(bool is_caught_up) {
  unpublished_ = 0;
  results_.is_caught_up = is_caught_up;
  results_.file_bytes = file_.size();
  results_.curve_interval_ns = curve_.interval_ns();
  Followed results = results_;
  results.corrupt_blocks += file_.corrupt_blocks();
  const std::vector<const GrowthPoints::Point*> points = points_.later_half();
  for (const auto* point : points) results.points.push_back(point->at);
  for (std::size_t index = 0; index < results.devices.size(); ++index) {
    FollowedDevice& followed = results.devices[index];
    DeviceMemory& memory = replay_.devices()[index];
    followed.totals = memory.totals();
    followed.reports_segments = memory.reports_segments();
    followed.largest_free = memory.largest_free();
    followed.curve_allocated = curve_.allocated(index);
    followed.curve_reserved = curve_.reserved(index);
    for (const auto* point : points) {
      std::uint64_t sum = 0;
      if (index < point->bytes.size()) {
        for (const auto& [stack, bytes] : point->bytes[index]) sum += bytes;
      }
      followed.requested.push_back(sum);
    }
  }
  results.stacks = rows_.list(replay_.devices(), points);
  publish_(results);
}

}  // namespace alloctrace
