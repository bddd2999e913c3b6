// Random events of an allocator through ring, codec and replay in a check build (csrc/core/base/check.h).
//
//   check_probe random SPOOL SEED EVENTS INVALID_PERCENT    INVALID_PERCENT: share of events that no allocator emits
//   check_probe changed-mark SPOOL                          overwrites the mark of a consumed event
//   check_probe changed-tail SPOOL                          moves the tail beyond the head
//
// Prints the number of events in the replay and its pieces. The other two commands must abort.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "../../csrc/core/format/event_codec.h"
#include "../../csrc/core/recording/spool.h"
#include "../../csrc/core/replay/replay.h"

using namespace alloctrace;

namespace {

constexpr std::uint64_t kRingEvents = 64;

// Random events of one device. Applies each event to a replay of its own, from which later events choose blocks.
class EventSource {
 public:
  EventSource(const Definitions& definitions, unsigned seed, unsigned invalid_percent)
      : replay_(definitions), random_(seed), invalid_percent_(invalid_percent) {}

  unsigned below(std::uint64_t limit) { return static_cast<unsigned>(random_() % limit); }
  const Replay& replay() const { return replay_; }

  void apply(Event event) { replay_.apply(event, sequence_++, 0, nullptr); }

  Event next() {
    segments_.clear();
    blocks_.clear();
    if (!replay_.devices().empty()) replay_.devices().front().list(segments_, blocks_);
    Event event{};
    event.location = 1 + below(2);
    event.thread = below(3);
    event.time = time_ += below(1000);
    event.stack = below(4);
    event.sequence = below(5);
    if (blocks_.empty() || below(50) == 0) return with_new_segment(event);
    if (below(200) == 0) {
      event.kind = EventKind::kConfig;
      event.address = 1 + below(2);
      return event;
    }
    if (below(100) < invalid_percent_) return make_invalid(event);
    const Piece& block = blocks_[below(blocks_.size())];
    event.address = block.address;
    if (block.state == PieceState::kFree) return with_free_block(event, block);
    event.kind =
        block.state == PieceState::kAllocated && below(2) == 0 ? EventKind::kFreeRequested : EventKind::kFreeCompleted;
    return event;
  }

 private:
  Event with_new_segment(Event event) {
    const bool is_mapping = below(2) == 0;
    event.kind = is_mapping ? EventKind::kSegmentMap : EventKind::kSegmentAlloc;
    event.size = (1 + below(20)) * kSmallSegment;
    event.address = next_address_;
    next_address_ += is_mapping ? std::uint64_t{1} << 40 : event.size + below(2) * kSmallSegment;
    return event;
  }

  Event with_free_block(Event event, const Piece& block) {
    const SegmentView* segment = &segments_.front();
    for (const SegmentView& view : segments_) {
      if (view.address <= block.address && block.address - view.address < view.total_size) segment = &view;
    }
    if (below(4) != 0) {
      event.kind = EventKind::kAlloc;
      event.size = 1 + random_() % block.size;
    } else if (!segment->is_expandable && segment->total_size == block.size) {
      event.kind = EventKind::kSegmentFree;
      event.size = block.size;
    } else if (segment->is_expandable && below(2) == 0) {
      event.kind = EventKind::kSegmentMap;
      event.address = segment->address + segment->total_size;
      event.size = (1 + below(4)) * kSmallSegment;
    } else if (segment->is_expandable && block.size >= kMinimumBlock) {
      event.kind = EventKind::kSegmentUnmap;
      const std::uint64_t units = block.size / kMinimumBlock, skipped = below(2) * below(units);
      event.address = block.address + skipped * kMinimumBlock;
      event.size = (1 + below(units - skipped)) * kMinimumBlock;
    } else {
      event.kind = EventKind::kAlloc;
      event.size = block.size;
    }
    return event;
  }

  Event make_invalid(Event event) {
    constexpr EventKind kKinds[] = {EventKind::kAlloc,        EventKind::kFreeRequested, EventKind::kFreeCompleted,
                                    EventKind::kSegmentAlloc, EventKind::kSegmentFree,   EventKind::kSegmentMap,
                                    EventKind::kSegmentUnmap};
    event.kind = kKinds[below(std::size(kKinds))];
    const Piece& block = blocks_[below(blocks_.size())];
    event.address = block.address + below(3) * kMinimumBlock * below(40);
    event.size = below(2) == 0 ? block.size : below(8) * kMinimumBlock * below(40);
    return event;
  }

  Replay replay_;
  std::minstd_rand random_;
  unsigned invalid_percent_;
  std::uint64_t sequence_ = 0, time_ = 0, next_address_ = std::uint64_t{1} << 32;
  std::vector<SegmentView> segments_;
  std::vector<Piece> blocks_;
};

// The part behind the ring: encode, decode and replay.
class EventSink {
 public:
  EventSink(Spool& spool, const Definitions& definitions)
      : spool_(&spool), definitions_(&definitions), replay_(definitions) {}

  const Replay& replay() const { return replay_; }
  std::uint64_t events() const { return sequence_; }

  void drain(std::uint64_t limit) {
    const std::uint64_t tail = spool_->tail(), end = spool_->consume(limit);
    const auto first = spool_->events(tail, end);
    const auto second = spool_->events(tail + first.size(), end);
    const Bytes& payload = encoder_.encode(first, second, 0);
    decode_events(payload.data(), payload.size(), end - tail, 0, decoded_);
    spool_->release(end);
    for (Event& event : decoded_) replay_.apply(event, sequence_++, 0, nullptr);
  }

  // Replace the replay by one restored from a checkpoint.
  void restore_checkpoint() {
    Replay restored(*definitions_);
    restored.unpack(replay_.packed());
    replay_ = std::move(restored);
  }

 private:
  Spool* spool_;
  const Definitions* definitions_;
  EventEncoder encoder_;
  std::vector<Event> decoded_;
  Replay replay_;
  std::uint64_t sequence_ = 0;
};

Definitions make_definitions() {
  Bytes records;
  put_string(records, 1, R"({"expandable_segments": true})");
  put_string(records, 2, R"({"expandable_segments": false})");
  put_location(records, 1, {1, 0, 0, 0, 0});
  put_location(records, 2, {1, 0, 3, 0, 7});
  Definitions definitions;
  definitions.add(records.data(), records.size());
  return definitions;
}

SpoolOptions spool_options(const char* path) {
  SpoolOptions options;
  options.path = path;
  options.ring_events = kRingEvents;
  options.definitions_bytes = 4096;
  options.wait_ns = 0;
  return options;
}

void replay_random_events(Spool& spool, unsigned seed, std::uint64_t count, unsigned invalid_percent) {
  const Definitions definitions = make_definitions();
  EventSource source(definitions, seed, invalid_percent);
  EventSink sink(spool, definitions);
  for (std::uint64_t i = 0; i < count; ++i) {
    Event event = source.next();
    std::uint64_t position = 0;
    while (spool.header().head - spool.tail() == kRingEvents) sink.drain(1 + source.below(kRingEvents));
    spool.push(event, &position);
    if (event.kind == EventKind::kFreeRequested && source.below(2) == 0 && spool.complete_free(position)) {
      event.kind = EventKind::kFreeCompleted;
    }
    source.apply(event);
    if (source.below(1000) == 0) sink.restore_checkpoint();
  }
  while (spool.header().head != spool.tail()) sink.drain(kRingEvents);
  const DeviceMemory& emitted = source.replay().devices().front();
  const DeviceMemory& read = sink.replay().devices().front();
  ALLOCTRACE_CHECK(emitted.totals().requested == read.totals().requested &&
                       emitted.totals().reserved == read.totals().reserved &&
                       emitted.totals().releasable == read.totals().releasable,
                   "the replay of the events that were read differs from the replay of those emitted");
  std::printf("%llu %zu\n", static_cast<unsigned long long>(sink.events()), read.piece_count());
}

}  // namespace

int main(int, char** arguments) {
  const std::string_view command = arguments[1];
  const std::uint8_t session[16] = {};
  Spool spool(spool_options(arguments[2]), session, [] {});
  if (command == "random") {
    replay_random_events(spool, static_cast<unsigned>(std::atoi(arguments[3])),
                         std::strtoull(arguments[4], nullptr, 10), static_cast<unsigned>(std::atoi(arguments[5])));
    return 0;
  }
  for (std::uint64_t i = 0; i < kRingEvents / 2; ++i) spool.push({});
  const std::uint64_t end = spool.consume(kRingEvents);
  if (command == "changed-mark") {
    const_cast<Event&>(spool.events(3, end).front()).commit = commit_mark(3 + kRingEvents);
    spool.release(end);
  } else {
    spool.header().tail = end + 1;
    spool.consume(kRingEvents);
  }
  return 1;
}
