// What a program asked of one device's allocator, in order: all that its memory follows from under any settings.
//
// A trace tells it in events, some of which say what the allocator did about it: those are kept apart, next to the
// request that caused them. A free that waited for another stream completes when the recorded one did; one that a
// request forced, when the driver had refused, comes after that request: no event says that it was forced, but then all
// that waited completes, and segments go back before the request is served.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../base/address_map.h"
#include "../format/event_fields.h"
#include "../reading/trace_reader.h"

namespace alloctrace::what_if {

enum class RequestKind : std::uint8_t {
  kAllocate,
  kRefused,   // an allocation that the recorded run did not get
  kFree,      // a block can be used again
  kGiveUp,    // the program has no use for a block, but another stream may
  kComplete,  // of one that was given up: it can be used again
  kEmptyCache,
  kSettings,     // other settings from here on
  kPoolBegins,   // a thread's allocations go to the pool from here on
  kPoolEnds,     // and no longer
  kPoolRelease,  // nobody will use the pool again
  kNoSplit,      // blocks of the pool are not split from here on
  kOwnMemory,    // the pool has an allocator of its own
  kPoolOnOom,    // out of memory, torch takes blocks of the pool from here on; size 0: no longer
  kCapture,      // a graph is captured from here on; size 0: no longer
  kFraction,     // what the process may reserve: size bytes, and the bits of the share in address
};

struct Request {
  std::uint64_t size = 0;      // bytes that the program asked for; see the kinds above
  std::uint64_t sequence = 0;  // number of the event
  std::uint64_t address = 0;   // of the recorded block
  std::uint64_t stream = 0;    // torch orders free blocks by it
  std::uint32_t block = 0;     // a number for the block, given out again when it is free; kSettings: which settings
  std::uint32_t pool = 0;      // numbered from 1; 0: the default pool
  std::uint32_t first_event = 0, event_count = 0;  // what the recorded allocator did about it, in Batch::events
  RequestKind kind = RequestKind::kAllocate;
};

// A segment event.
struct SegmentEvent {
  EventKind kind = EventKind::kSegmentAlloc;
  std::uint64_t address = 0, size = 0;
  auto operator<=>(const SegmentEvent&) const = default;
};

constexpr bool is_given_back(EventKind kind) {
  return kind == EventKind::kSegmentFree || kind == EventKind::kSegmentUnmap;
}

// A segment or a block that was there when the recording began; blocks follow their segment.
struct Inherited {
  bool is_segment = false, is_large = false, is_expandable = false;
  std::uint64_t address = 0, size = 0;
  std::uint64_t state = kBlockInactive;  // a BlockState
  std::uint64_t stream = 0;
  std::uint32_t block = 0, pool = 0;
};

struct Batch {
  std::vector<Request> requests;
  std::vector<SegmentEvent> events;
  std::vector<Inherited> inherited;  // only in the first batch that has any requests
};

class RequestReader {
 public:
  RequestReader(std::shared_ptr<const TraceReader> trace, std::int32_t device_type, std::int32_t device_index)
      : trace_(std::move(trace)), device_type_(device_type), device_index_(device_index) {}

  // The next requests, at least `wanted` as long as there are that many. False at the end. Throws OpenError when the
  // file went away in the meantime.
  bool next(Batch& batch, std::size_t wanted);

  // The settings that kSettings requests name: texts of `config` events.
  const std::vector<std::string>& settings() const { return settings_; }
  std::uint64_t events_read() const { return events_read_; }
  // As many as were there at once so far.
  std::uint64_t blocks() const { return block_count_; }

 private:
  struct Place {
    bool is_here = false;
    std::uint64_t stream = 0;
    std::uint32_t pool = 0;
  };
  struct LiveBlock {
    std::uint64_t stream = 0;
    std::uint32_t number = 0;
    bool is_awaited = false;   // another stream uses it
    bool is_given_up = false;  // its free was requested
  };

  const Place& place(std::uint32_t location);
  std::uint32_t pool_number(std::uint64_t first, std::uint64_t second);
  std::uint32_t new_block();
  void take(const Event& event, std::uint64_t sequence, Batch& batch);
  void take_inherited(const Event& event, Batch& batch);
  void allocate(const Event& event, std::uint64_t sequence, Batch& batch);
  void give_up(const Event& event, std::uint64_t sequence);
  void complete(const Event& event, std::uint64_t sequence);
  void take_segment(const Event& event);
  void take_pool(const Event& event, std::uint64_t sequence);
  // The pool that an allocation asked, which may not be the one that it got its block from.
  std::uint32_t asked_pool(const Event& event);
  void hold(RequestKind kind, const Event& event, std::uint64_t sequence, std::uint32_t block = 0);
  void flush(Batch& batch);

  std::shared_ptr<const TraceReader> trace_;
  std::int32_t device_type_, device_index_;
  std::size_t chunk_ = 0;
  std::uint64_t events_read_ = 0;
  std::vector<Event> decoded_;
  std::vector<std::optional<Place>> places_;  // by location
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> pools_;
  std::vector<std::string> settings_;

  AddressMap<LiveBlock> live_;  // allocated, or given up and awaited
  std::vector<std::uint32_t> unused_blocks_;
  std::uint32_t block_count_ = 0;
  std::uint64_t waiting_ = 0;  // blocks that were given up, and not completed
  std::uint64_t state_left_ = 0;
  bool has_begun_ = false;  // a request was seen

  // Since the last allocation, until it is known what belongs to which request.
  std::vector<Request> held_;
  std::vector<SegmentEvent> held_events_;
  std::ptrdiff_t emptied_ = -1;   // in held_: the kEmptyCache whose segments are going back
  std::size_t emptied_at_ = 0;    // in held_: what comes from here on is after the last of them
  std::uint32_t emptied_by_ = 0;  // its thread
  bool is_emptying_ = false;      // that thread has not gone on since
  bool gave_back_ = false;        // a segment went back, and not by empty_cache
  std::set<std::uint32_t> released_pools_;
  std::set<std::uint32_t> pools_in_use_, pools_on_oom_;
};

}  // namespace alloctrace::what_if
