#include "folded_part.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "../replay/fold.h"
#include "../replay/trace_cursor.h"

namespace alloctrace {
namespace {

// Looks at what holds memory that are written again: more than any verdict asks.
constexpr std::size_t kLooks = 32;
constexpr std::size_t kOnTheWay = 12;

// Stands where the events begin: at the beginning, or behind what is folded already.
class Beginning {
 public:
  Beginning(const std::shared_ptr<const TraceReader>& trace, RunEvidence& evidence) {
    if (trace->folded_until() == 0) return;
    Replay replay(trace->definitions());
    try {
      fold_ = std::make_unique<const Fold>(*trace);
      fold_->restore(replay, evidence);
    } catch (const DecodeError& error) {
      throw FormatError(trace->path() + " begins with sums of compacted events that are invalid (" + error.what() +
                        "): it cannot be compacted further");
    }
    checkpoint_.state = replay.packed();
    replay_.emplace(std::move(replay));
  }

  void stand(TraceCursor& cursor) {
    cursor.jump(checkpoint_);
    // With all that a checkpoint does not keep.
    if (replay_) cursor.replay() = std::move(*replay_);
    replay_.reset();
  }
  void stand_again(TraceCursor& cursor) const { cursor.jump(checkpoint_); }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const Fold* fold() const { return fold_.get(); }

 private:
  std::unique_ptr<const Fold> fold_;
  std::optional<Replay> replay_;
  Checkpoint checkpoint_;
};

class MomentKeeper {
 public:
  MomentKeeper(const Replay& end, const Definitions& definitions) : end_(&end), definitions_(&definitions) {}

  void keep(std::uint64_t until, const Replay& replay) {
    FoldWriter memory(*definitions_);
    replay.save_memory(memory, *end_);
    moments_.push_back({until, memory.bytes()});
    for (const DeviceMemory& device : replay.devices()) {
      device.for_each_allocated([&](const Piece& piece) { past_.push_back({piece.birth, piece.address}); });
    }
    forget_the_same();
  }
  const std::vector<FoldedMoment>& moments() const { return moments_; }
  const std::vector<Roles::Key>& past() const { return past_; }

 private:
  void forget_the_same() {
    const auto is_less = [](const Roles::Key& a, const Roles::Key& b) {
      return a.birth != b.birth ? a.birth < b.birth : a.address < b.address;
    };
    std::sort(past_.begin(), past_.end(), is_less);
    past_.erase(std::unique(past_.begin(), past_.end()), past_.end());
  }

  const Replay* end_;
  const Definitions* definitions_;
  std::vector<FoldedMoment> moments_;
  std::vector<Roles::Key> past_;  // blocks that were live at one of them
};

std::uint64_t first_kept_look(const Definitions& definitions) {
  std::vector<std::uint64_t> looks;
  for (const HolderRecord& holder : definitions.holders()) looks.push_back(holder.event);
  std::sort(looks.begin(), looks.end());
  looks.erase(std::unique(looks.begin(), looks.end()), looks.end());
  return looks.size() <= kLooks ? 0 : looks[looks.size() - kLooks];
}

void place(FoldedPart& part, const TraceReader& trace) {
  part.end = trace.first_anchor();
  part.copied_from = trace.offset_of_events(part.summary.until);
  for (const Chunk& chunk : trace.chunks()) {
    if (chunk.first_sequence >= part.summary.until) break;
    part.copied_from = chunk.payload_offset + chunk.payload_bytes;
    part.end = chunk.end;
    if (chunk.end_sequence() > part.summary.until) {
      part.cut = chunk;
      part.end = chunk.begin;
    }
  }
}

}  // namespace

FoldedPart fold_until(const std::shared_ptr<const TraceReader>& trace, std::uint64_t until,
                      std::pair<std::uint64_t, std::uint64_t> nodes_at_begin, const FoldProgress& progress) {
  constexpr double kFirstPass = 0.6;
  RunEvidence evidence(*trace);
  Beginning beginning(trace, evidence);
  if (!beginning.fold()) evidence.roles().fates().begin(nodes_at_begin.first, nodes_at_begin.second);
  const std::uint64_t begin = trace->folded_until();
  const auto tell = [&](const TraceCursor& cursor, double from, double share) {
    if (!progress) return;
    const double done = static_cast<double>(cursor.taken_until() - begin) / static_cast<double>(until - begin);
    progress(from + share * std::min(done, 1.0));
  };

  FoldedPart part;
  part.summary.until = until;
  part.summary.events = trace->integrity().folded_events;
  part.summary.time_ns = begin == 0 ? trace->begin_ns() : trace->integrity().folded_until_ns;
  TraceCursor cursor(trace);
  beginning.stand(cursor);
  const auto take = [&](const Event& event, std::uint64_t sequence, std::int64_t time_ns, const Change& change) {
    evidence.take(event, sequence, time_ns, change, cursor.replay());
    part.summary.time_ns = time_ns;
    ++part.summary.events;
  };
  // States on the way, so that moments are found again without another whole pass.
  std::vector<Checkpoint> on_the_way{beginning.checkpoint()};
  const std::size_t apart = std::max<std::size_t>(trace->chunks().size() / kOnTheWay, 1);
  while (cursor.take_chunk(until, &evidence.findings(), take)) {
    tell(cursor, 0, kFirstPass);
    if (cursor.taken_until() < until && cursor.chunk() >= on_the_way.back().chunk + apart) {
      on_the_way.push_back({cursor.chunk(), 0, cursor.replay().packed()});
    }
  }
  // Else the first event that is not folded would seem to follow what was folded.
  if (cursor.taken_until() < until) cursor.replay().note_loss();

  const Replay& end = cursor.replay();
  MomentKeeper keeper(end, trace->definitions());
  TraceCursor again(trace);
  beginning.stand_again(again);
  for (const std::uint64_t moment : evidence.moments()) {
    if (moment >= until) break;
    if (moment < begin) {
      Replay folded_end(trace->definitions());
      folded_end.unpack(beginning.checkpoint().state);
      if (const auto memory = beginning.fold()->memory_before(moment, folded_end)) keeper.keep(moment, *memory);
      continue;
    }
    const auto is_later = [&](const Checkpoint& known) {
      return known.chunk != 0 && trace->chunks()[known.chunk - 1].end_sequence() > moment;
    };
    const auto nearest = std::prev(std::find_if(on_the_way.begin() + 1, on_the_way.end(), is_later));
    if (nearest->chunk > again.chunk()) again.jump(*nearest);
    while (again.take_chunk(moment, nullptr, [](const Event&, std::uint64_t, std::int64_t, const Change&) {})) {
      tell(again, kFirstPass, 1 - kFirstPass);
    }
    keeper.keep(moment, again.replay());
  }
  place(part, *trace);
  const TraceReader::Damage damage = trace->damage_before(part.copied_from);
  const TraceReader::Damage folded = trace->folded_damage();
  part.summary.missing = until - part.summary.events;
  part.summary.corrupt_blocks = folded.blocks + damage.blocks;
  part.summary.corrupt_bytes = folded.bytes + damage.bytes;
  part.payload = fold_payload(end, evidence, keeper.moments(), keeper.past());
  part.dictionary = trace->definitions().records(first_kept_look(trace->definitions()));
  return part;
}

}  // namespace alloctrace
