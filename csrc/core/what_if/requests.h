// A program's requests to one device's allocator, in order: the input of every simulation.
//
// Segment events record the allocator's reaction, so they are stored apart, next to the request that caused them. A
// free that waited for another stream completes where the recorded one did. A free that completed because a request
// waited for the device (its driver call had failed) is moved behind that request. No event marks such frees; they are
// recognised because all pending frees complete and segments are freed before the request is served.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../base/address_map.h"
#include "../format/event_fields.h"
#include "../reading/trace_reader.h"

namespace alloctrace::what_if {

enum class RequestKind : std::uint8_t {
  kAllocate,
  kFailedAllocation,  // failed in the recorded run
  kFree,              // a block becomes reusable
  kFreeRequested,     // freed by the program, but another stream may still use the block
  kFreeCompleted,     // a block with kFreeRequested becomes reusable
  kEmptyCache,
  kSettings,       // changed settings
  kPoolUseBegins,  // a thread's allocations are routed to the pool
  kPoolUseEnds,    // end of that routing
  kPoolRelease,    // last user of the pool released it
  kNoSplit,        // blocks of the pool are no longer split
  kOwnAllocator,   // the pool has a custom allocator
  kPoolOnOom,      // size 1: the pool serves requests that are out of memory; 0: no longer
  kCapture,        // size 1: graph capture begins; 0: ends
  kFraction,       // memory fraction: its bits in address, in bytes in size
};

struct Request {
  std::uint64_t size = 0;      // requested bytes; otherwise see RequestKind
  std::uint64_t sequence = 0;  // sequence number of the event
  std::uint64_t address = 0;   // of the recorded block
  std::uint64_t stream = 0;    // part of the sort key of free blocks
  std::uint32_t block = 0;     // block number, reused after the free; kSettings: index of the settings
  std::uint32_t pool = 0;      // numbered from 1; 0: the default pool
  std::uint32_t first_event = 0, event_count = 0;  // its segment events in Batch::events
  RequestKind kind = RequestKind::kAllocate;
  bool grows = false;  // the size is proportional to the batch
};

struct SegmentEvent {
  EventKind kind = EventKind::kSegmentAlloc;
  std::uint64_t address = 0, size = 0;
  auto operator<=>(const SegmentEvent&) const = default;
};

constexpr bool is_release(EventKind kind) {
  return kind == EventKind::kSegmentFree || kind == EventKind::kSegmentUnmap;
}

// A segment or block older than the recording. Blocks follow their segment.
struct Inherited {
  bool is_segment = false, is_large = false, is_expandable = false;
  std::uint64_t address = 0, size = 0;
  std::uint64_t state = kBlockInactive;  // BlockState
  std::uint64_t stream = 0;
  std::uint32_t block = 0, pool = 0;
};

struct Batch {
  std::vector<Request> requests;
  std::vector<SegmentEvent> events;
  std::vector<Inherited> inherited;  // only in the first batch with requests
};

class RequestReader {
 public:
  // growing: events of allocations whose size is proportional to the batch, ascending; must outlive the reader.
  RequestReader(std::shared_ptr<const TraceReader> trace, std::int32_t device_type, std::int32_t device_index,
                std::span<const std::uint64_t> growing)
      : trace_(std::move(trace)), device_type_(device_type), device_index_(device_index), growing_(growing) {}

  // Read at least `min_requests`, fewer at the end; false if none are left. Throws OpenError if the file was removed.
  bool next(Batch& batch, std::size_t min_requests);

  const std::vector<std::string>& settings() const { return settings_; }  // JSON texts, indexed by kSettings requests
  std::uint64_t events_read() const { return events_read_; }
  std::uint64_t max_blocks() const { return block_count_; }  // maximum number of simultaneous blocks so far

 private:
  struct ResolvedLocation {
    bool is_this_device = false;
    std::uint64_t stream = 0;
    std::uint32_t pool = 0;
  };
  struct LiveBlock {
    std::uint64_t stream = 0;
    std::uint32_t number = 0;
    bool is_used_by_other_stream = false;  // the completion of a free waits for that stream
    bool is_free_requested = false;
  };

  // A call of empty_cache, which frees segments until its thread requests or frees a block.
  struct EmptyCacheCall {
    std::size_t request = 0;        // its index in Pending::requests
    std::size_t request_count = 0;  // size of Pending::requests at its last segment event
    std::uint32_t thread = 0;       // that called it
    bool is_running = true;         // no request of that thread since
  };
  // Requests since the last allocation. Their segment events are not yet assigned to requests, except those of
  // empty_cache.
  struct Pending {
    std::vector<Request> requests;
    std::vector<SegmentEvent> events;
    std::optional<EmptyCacheCall> empty_cache;  // the last call
    bool has_released_segment = false;          // outside empty_cache

    Request& empty_cache_request() { return requests[empty_cache->request]; }
    // Return the index of the first event after those of empty_cache.
    std::size_t first_unassigned_event() const;
    void clear();
  };

  const ResolvedLocation& resolve(std::uint32_t location);
  std::uint32_t pool_number(std::uint64_t first, std::uint64_t second);
  std::uint32_t new_block();
  void consume(const Event& event, std::uint64_t sequence, Batch& batch);
  void consume_inherited(const Event& event, Batch& batch);
  void consume_empty_cache(const Event& event, std::uint64_t sequence);
  void consume_settings(const Event& event, std::uint64_t sequence);
  void mark_stream_use(const Event& event);
  void add_allocation(const Event& event, std::uint64_t sequence, Batch& batch);
  // Return the number of the new block at the event's address.
  std::uint32_t insert_block(const Event& event, std::uint64_t sequence);
  // Remove and return the frees that completed because of a request, which may have failed.
  std::vector<Request> extract_forced_frees(bool is_failed);
  void request_free(const Event& event, std::uint64_t sequence);
  void complete_free(const Event& event, std::uint64_t sequence);
  void consume_segment(const Event& event);
  bool is_freed_by_empty_cache(EventKind kind, std::uint32_t pool);
  // Add the release of a pool whose segment is freed, if it is missing.
  void add_missing_release(std::uint32_t pool, bool is_by_empty_cache);
  void consume_pool(const Event& event, std::uint64_t sequence);
  // Return the pool of the request: an on_oom pool may have served a request of the default pool.
  std::uint32_t requested_pool(const Event& event);
  void append(RequestKind kind, const Event& event, std::uint64_t sequence, std::uint32_t block = 0);
  void flush(Batch& batch);

  std::shared_ptr<const TraceReader> trace_;
  std::int32_t device_type_, device_index_;
  std::span<const std::uint64_t> growing_;  // after the last allocation
  std::size_t chunk_ = 0;
  std::uint64_t events_read_ = 0;
  std::vector<Event> decoded_;
  std::vector<std::optional<ResolvedLocation>> locations_;  // by location id
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> pools_;
  std::vector<std::string> settings_;

  AddressMap<LiveBlock> live_;  // allocated, or with a pending free
  std::vector<std::uint32_t> unused_blocks_;
  std::uint32_t block_count_ = 0;
  std::uint64_t pending_frees_ = 0;  // kFreeRequested without kFreeCompleted
  std::uint64_t state_entries_left_ = 0;
  bool may_inherit_ = true;  // no state, allocation or free was read

  Pending pending_;
  std::set<std::uint32_t> released_pools_;
  std::set<std::uint32_t> pools_in_use_, pools_on_oom_;
};

}  // namespace alloctrace::what_if
