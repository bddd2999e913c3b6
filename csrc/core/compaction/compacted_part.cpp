#include "compacted_part.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "../replay/compacted_state.h"
#include "../replay/trace_cursor.h"

namespace alloctrace {
namespace {

// Maximum number of object scans written again: more than any analysis reads.
constexpr std::size_t kMaxScans = 48;
constexpr std::size_t kCheckpoints = 12;  // of the first pass, approximately

// State at the first event: empty, or the end of the part that is compacted already.
class StartState {
 public:
  StartState(const std::shared_ptr<const TraceReader>& trace, RunEvidence& evidence) {
    if (trace->compacted_until() == 0) return;
    Replay replay(trace->definitions());
    try {
      compacted_ = std::make_unique<const CompactedState>(*trace);
      compacted_->restore(replay, evidence);
    } catch (const DecodeError& error) {
      throw FormatError(trace->path() + " begins with sums of compacted events that are invalid (" + error.what() +
                        "): it cannot be compacted further");
    }
    checkpoint_.state = replay.packed();
    replay_.emplace(std::move(replay));
  }

  void move_to_start(TraceCursor& cursor) {
    cursor.restore(checkpoint_);
    // Restore what a checkpoint does not store.
    if (replay_) cursor.replay() = std::move(*replay_);
    replay_.reset();
  }
  void return_to_start(TraceCursor& cursor) const { cursor.restore(checkpoint_); }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const CompactedState* compacted() const { return compacted_.get(); }

 private:
  std::unique_ptr<const CompactedState> compacted_;
  std::optional<Replay> replay_;
  Checkpoint checkpoint_;
};

class SnapshotCollector {
 public:
  SnapshotCollector(const Replay& end, const Definitions& definitions) : end_(&end), definitions_(&definitions) {}

  void add(std::uint64_t until, const Replay& replay) {
    CompactionWriter memory(*definitions_);
    replay.save_memory(memory, *end_);
    snapshots_.push_back({until, memory.bytes()});
    for (const DeviceMemory& device : replay.devices()) {
      device.for_each_allocated(
          [&](const Piece& piece) { live_blocks_.push_back({piece.alloc_sequence, piece.address}); });
    }
    remove_duplicates();
  }
  const std::vector<CompactedSnapshot>& snapshots() const { return snapshots_; }
  const std::vector<Roles::Key>& live_blocks() const { return live_blocks_; }

 private:
  void remove_duplicates() {
    const auto is_less = [](const Roles::Key& a, const Roles::Key& b) {
      return a.alloc_sequence != b.alloc_sequence ? a.alloc_sequence < b.alloc_sequence : a.address < b.address;
    };
    std::sort(live_blocks_.begin(), live_blocks_.end(), is_less);
    live_blocks_.erase(std::unique(live_blocks_.begin(), live_blocks_.end()), live_blocks_.end());
  }

  const Replay* end_;
  const Definitions* definitions_;
  std::vector<CompactedSnapshot> snapshots_;
  std::vector<Roles::Key> live_blocks_;  // blocks live at any of the snapshots
};

std::uint64_t first_kept_scan(const Definitions& definitions) {
  std::vector<std::uint64_t> scans;
  for (const HolderRecord& holder : definitions.holders()) {
    if (!holder.addresses.empty()) scans.push_back(holder.event);
  }
  std::sort(scans.begin(), scans.end());
  scans.erase(std::unique(scans.begin(), scans.end()), scans.end());
  return scans.size() <= kMaxScans ? 0 : scans[scans.size() - kMaxScans];
}

void locate_remainder(CompactedPart& part, const TraceReader& trace) {
  part.end = trace.first_anchor();
  part.copy_offset = trace.offset_of_events(part.summary.until);
  for (const Chunk& chunk : trace.chunks()) {
    if (chunk.first_sequence >= part.summary.until) break;
    part.copy_offset = chunk.payload_offset + chunk.payload_bytes;
    part.end = chunk.end;
    if (chunk.end_sequence() > part.summary.until) {
      part.split_chunk = chunk;
      part.end = chunk.begin;
    }
  }
}

}  // namespace

CompactedPart compact_until(const std::shared_ptr<const TraceReader>& trace, std::uint64_t until,
                            std::pair<std::uint64_t, std::uint64_t> nodes_at_begin,
                            const CompactionProgress& progress) {
  constexpr double kFirstPassShare = 0.6;
  RunEvidence evidence(*trace);
  StartState start_state(trace, evidence);
  if (!start_state.compacted()) evidence.roles().lifetimes().begin(nodes_at_begin.first, nodes_at_begin.second);
  const std::uint64_t begin = trace->compacted_until();
  const auto report_progress = [&](const TraceCursor& cursor, double start, double share) {
    if (!progress) return;
    const double done = static_cast<double>(cursor.consumed_until() - begin) / static_cast<double>(until - begin);
    progress(start + share * std::min(done, 1.0));
  };

  CompactedPart part;
  part.summary.until = until;
  part.summary.events = trace->integrity().compacted_events;
  part.summary.time_ns = begin == 0 ? trace->begin_ns() : trace->integrity().compacted_until_ns;
  TraceCursor cursor(trace);
  start_state.move_to_start(cursor);
  const auto consume = [&](const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Change& change) {
    evidence.record(event, sequence, time_ns, change, cursor.replay());
    part.summary.time_ns = time_ns;
    ++part.summary.events;
  };
  // Checkpoints of the first pass, from which the second one reaches the snapshots without a full pass.
  std::vector<Checkpoint> checkpoints{start_state.checkpoint()};
  const std::size_t chunk_interval = std::max<std::size_t>(trace->chunks().size() / kCheckpoints, 1);
  while (cursor.consume_chunk(until, &evidence.findings(), consume)) {
    report_progress(cursor, 0, kFirstPassShare);
    if (cursor.consumed_until() < until && cursor.chunk() >= checkpoints.back().chunk + chunk_interval) {
      checkpoints.push_back({cursor.chunk(), 0, cursor.replay().packed()});
    }
  }
  // Without this, the first event after the compacted part would seem to follow it without a gap.
  if (cursor.consumed_until() < until) cursor.replay().note_loss();

  const Replay& end = cursor.replay();
  SnapshotCollector collector(end, trace->definitions());
  TraceCursor rerun(trace);
  start_state.return_to_start(rerun);
  for (const std::uint64_t position : evidence.snapshot_positions()) {
    if (position >= until) break;
    if (position < begin) {
      Replay old_end(trace->definitions());
      old_end.unpack(start_state.checkpoint().state);
      if (const auto memory = start_state.compacted()->memory_before(position, old_end))
        collector.add(position, *memory);
      continue;
    }
    const auto is_later = [&](const Checkpoint& checkpoint) {
      return checkpoint.chunk != 0 && trace->chunks()[checkpoint.chunk - 1].end_sequence() > position;
    };
    const auto nearest = std::prev(std::find_if(checkpoints.begin() + 1, checkpoints.end(), is_later));
    if (nearest->chunk > rerun.chunk()) rerun.restore(*nearest);
    while (rerun.consume_chunk(position, nullptr, [](const Event&, std::uint64_t, std::int64_t, const Change&) {})) {
      report_progress(rerun, kFirstPassShare, 1 - kFirstPassShare);
    }
    collector.add(position, rerun.replay());
  }
  locate_remainder(part, *trace);
  const TraceReader::Damage damage = trace->damage_before(part.copy_offset);
  const TraceReader::Damage compacted_damage = trace->compacted_damage();
  part.summary.missing = until - part.summary.events;
  part.summary.corrupt_blocks = compacted_damage.blocks + damage.blocks;
  part.summary.corrupt_bytes = compacted_damage.bytes + damage.bytes;
  part.payload = compaction_payload(end, evidence, collector.snapshots(), collector.live_blocks());
  part.dictionary = trace->definitions().records(first_kept_scan(trace->definitions()));
  return part;
}

}  // namespace alloctrace
