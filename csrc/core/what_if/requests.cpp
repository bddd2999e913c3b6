#include "requests.h"

#include <algorithm>
#include <functional>

namespace alloctrace::what_if {

bool RequestReader::next(Batch& batch, std::size_t min_requests) {
  batch.requests.clear();
  batch.events.clear();
  batch.inherited.clear();
  const std::vector<Chunk>& chunks = trace_->chunks();
  while (batch.requests.size() < min_requests && chunk_ < chunks.size()) {
    const Chunk& chunk = chunks[chunk_++];
    decoded_.clear();
    try {
      trace_->decode(chunk, decoded_);
    } catch (const DecodeError&) {
      decoded_.clear();  // a corrupt chunk: callers check the integrity first
    }
    for (std::size_t i = 0; i < decoded_.size(); ++i) consume(decoded_[i], chunk.first_sequence + i, batch);
    events_read_ += chunk.event_count;
  }
  if (chunk_ == chunks.size()) flush(batch);
  return !batch.requests.empty() || chunk_ < chunks.size();
}

const RequestReader::ResolvedLocation& RequestReader::resolve(std::uint32_t location) {
  if (location >= locations_.size()) locations_.resize(location + std::size_t{1});
  std::optional<ResolvedLocation>& resolved = locations_[location];
  if (!resolved) {
    const Location& definition = trace_->definitions().location(location);
    resolved = ResolvedLocation{};
    resolved->is_this_device = definition.device_type == device_type_ && definition.device_index == device_index_;
    resolved->stream = definition.stream;
    resolved->pool = pool_number(definition.pool_first, definition.pool_second);
  }
  return *resolved;
}

std::uint32_t RequestReader::pool_number(std::uint64_t first, std::uint64_t second) {
  if (first == 0 && second == 0) return 0;
  return pools_.try_emplace({first, second}, static_cast<std::uint32_t>(pools_.size() + 1)).first->second;
}

std::uint32_t RequestReader::new_block() {
  if (unused_blocks_.empty()) return block_count_++;
  const std::uint32_t block = unused_blocks_.back();
  unused_blocks_.pop_back();
  return block;
}

void RequestReader::consume(const Event& event, std::uint64_t sequence, Batch& batch) {
  if (event.kind == EventKind::kEmptyCache) return consume_empty_cache(event, sequence);
  if (!resolve(event.location).is_this_device) return;
  switch (event.kind) {
    case EventKind::kAlloc:
    case EventKind::kOom:
      return add_allocation(event, sequence, batch);
    case EventKind::kFreeRequested:
      return request_free(event, sequence);
    case EventKind::kFreeCompleted:
      return complete_free(event, sequence);
    case EventKind::kSegmentAlloc:
    case EventKind::kSegmentFree:
    case EventKind::kSegmentMap:
    case EventKind::kSegmentUnmap:
      return consume_segment(event);
    case EventKind::kStreamUse:
      return mark_stream_use(event);
    case EventKind::kConfig:
      return consume_settings(event, sequence);
    case EventKind::kPoolUse:
    case EventKind::kPoolRelease:
    case EventKind::kPoolOnOom:
    case EventKind::kPoolAllocator:
    case EventKind::kNoSplit:
      return consume_pool(event, sequence);
    case EventKind::kCapture:
      append(RequestKind::kCapture, event, sequence);
      pending_.requests.back().size = PoolSwitchFields(event).begins;
      return;
    case EventKind::kMemoryFraction:
      return append(RequestKind::kFraction, event, sequence);
    case EventKind::kAllocatorState:
      // Only the first state existed before the recording: a later one contains the same memory again.
      if (may_inherit_) state_entries_left_ = AllocatorStateFields(event).entries;
      may_inherit_ = false;
      return;
    case EventKind::kStateSegment:
    case EventKind::kStateBlock:
      return consume_inherited(event, batch);
    default:
      return;
  }
}

// Applies to all devices, not only to the event's location.
void RequestReader::consume_empty_cache(const Event& event, std::uint64_t sequence) {
  if (trace_->definitions().location(event.location).device_type != device_type_) return;
  append(RequestKind::kEmptyCache, event, sequence);
  pending_.requests.back().first_event = static_cast<std::uint32_t>(pending_.events.size());
  pending_.empty_cache = {pending_.requests.size() - 1, pending_.requests.size(), event.thread};
}

void RequestReader::consume_settings(const Event& event, std::uint64_t sequence) {
  append(RequestKind::kSettings, event, sequence, static_cast<std::uint32_t>(settings_.size()));
  settings_.push_back(trace_->definitions().string(static_cast<std::uint32_t>(ConfigFields(event).settings)));
}

void RequestReader::mark_stream_use(const Event& event) {
  if (LiveBlock* const block = live_.find(event.address)) {
    block->is_used_by_other_stream |= block->stream != resolve(event.location).stream;
  }
}

void RequestReader::consume_pool(const Event& event, std::uint64_t sequence) {
  const std::uint32_t pool = resolve(event.location).pool;
  const bool begins = PoolSwitchFields(event).begins != 0;
  switch (event.kind) {
    case EventKind::kPoolUse:
      append(begins ? RequestKind::kPoolUseBegins : RequestKind::kPoolUseEnds, event, sequence);
      if (begins) {
        pools_in_use_.insert(pool);
        released_pools_.erase(pool);
      } else {
        pools_in_use_.erase(pool);
      }
      return;
    case EventKind::kPoolRelease:
      if (PoolReleaseFields(event).uses_left == 0 && released_pools_.insert(pool).second) {
        append(RequestKind::kPoolRelease, event, sequence);
      }
      return;
    case EventKind::kPoolOnOom:
      append(RequestKind::kPoolOnOom, event, sequence);
      pending_.requests.back().size = begins;
      if (begins) {
        pools_on_oom_.insert(pool);
      } else {
        pools_on_oom_.erase(pool);
      }
      return;
    default:
      append(event.kind == EventKind::kNoSplit ? RequestKind::kNoSplit : RequestKind::kOwnAllocator, event, sequence);
  }
}

std::uint32_t RequestReader::requested_pool(const Event& event) {
  const std::uint32_t pool = resolve(event.location).pool;
  return pools_on_oom_.contains(pool) && !pools_in_use_.contains(pool) ? 0 : pool;
}

void RequestReader::consume_inherited(const Event& event, Batch& batch) {
  if (state_entries_left_ == 0) return;
  --state_entries_left_;
  Inherited row;
  row.address = event.address;
  row.size = event.size;
  row.stream = resolve(event.location).stream;
  row.pool = resolve(event.location).pool;
  if (event.kind == EventKind::kStateSegment) {
    const std::uint64_t flags = StateSegmentFields(event).flags;
    row.is_segment = true;
    row.is_large = (flags & kLargeSegment) != 0;
    row.is_expandable = (flags & kExpandableSegment) != 0;
  } else {
    row.state = StateBlockFields(event).state;
    if (row.state != kBlockInactive) {
      row.block = new_block();
      const bool is_free_requested = row.state == kBlockPendingFree;
      *live_.insert(event.address).first = {row.stream, row.block, is_free_requested, is_free_requested};
      if (is_free_requested) ++pending_frees_;
    }
  }
  batch.inherited.push_back(row);
}

void RequestReader::add_allocation(const Event& event, std::uint64_t sequence, Batch& batch) {
  may_inherit_ = false;
  const bool is_failed = event.kind == EventKind::kOom;
  const std::vector<Request> forced_frees = extract_forced_frees(is_failed);
  const std::uint32_t block = is_failed ? 0 : insert_block(event, sequence);
  append(is_failed ? RequestKind::kFailedAllocation : RequestKind::kAllocate, event, sequence, block);
  Request& request = pending_.requests.back();
  const std::size_t first_event = pending_.first_unassigned_event();
  request.pool = requested_pool(event);
  while (!growing_.empty() && growing_.front() < sequence) growing_ = growing_.subspan(1);
  request.grows = !growing_.empty() && growing_.front() == sequence;
  request.first_event = static_cast<std::uint32_t>(first_event);
  request.event_count = static_cast<std::uint32_t>(pending_.events.size() - first_event);
  pending_.requests.insert(pending_.requests.end(), forced_frees.begin(), forced_frees.end());
  flush(batch);
}

std::vector<Request> RequestReader::extract_forced_frees(bool is_failed) {
  if (pending_frees_ != 0 || !(pending_.has_released_segment || is_failed)) return {};
  std::vector<Request>& requests = pending_.requests;
  const std::size_t earlier = pending_.empty_cache ? pending_.empty_cache->request_count : 0;
  const auto is_completion = [](const Request& request) { return request.kind == RequestKind::kFreeCompleted; };
  const auto completions = std::stable_partition(requests.begin() + static_cast<std::ptrdiff_t>(earlier),
                                                 requests.end(), std::not_fn(is_completion));
  std::vector<Request> forced_frees(completions, requests.end());
  requests.erase(completions, requests.end());
  return forced_frees;
}

std::uint32_t RequestReader::insert_block(const Event& event, std::uint64_t sequence) {
  const std::uint32_t block = new_block();
  const auto [live, is_new] = live_.insert(event.address);
  if (!is_new) append(RequestKind::kFree, event, sequence, live->number);  // previous free missing
  *live = {resolve(event.location).stream, block};
  return block;
}

void RequestReader::request_free(const Event& event, std::uint64_t sequence) {
  may_inherit_ = false;
  if (pending_.empty_cache && pending_.empty_cache->thread == event.thread) pending_.empty_cache->is_running = false;
  LiveBlock* const live = live_.find(event.address);
  if (!live) return;  // the block is older than the recording
  live->is_free_requested = true;
  append(RequestKind::kFreeRequested, event, sequence, live->number);
  ++pending_frees_;
}

void RequestReader::complete_free(const Event& event, std::uint64_t sequence) {
  const LiveBlock* const live = live_.find(event.address);
  // A free that waits for no stream is one event, or two adjacent ones.
  if (!live || !live->is_free_requested) request_free(event, sequence);
  if (!live) return;
  std::vector<Request>& requests = pending_.requests;
  if (!requests.empty() && requests.back().kind == RequestKind::kFreeRequested &&
      requests.back().block == live->number && !live->is_used_by_other_stream) {
    requests.back().kind = RequestKind::kFree;
  } else {
    append(RequestKind::kFreeCompleted, event, sequence, live->number);
  }
  if (pending_frees_ != 0) --pending_frees_;
  live_.erase(event.address);
}

void RequestReader::consume_segment(const Event& event) {
  const bool is_released = is_release(event.kind);
  const std::uint32_t pool = resolve(event.location).pool;
  const bool is_by_empty_cache = is_freed_by_empty_cache(event.kind, pool);
  if (is_released) add_missing_release(pool, is_by_empty_cache);
  pending_.events.push_back({event.kind, event.address, event.size});
  if (is_by_empty_cache) {
    ++pending_.empty_cache_request().event_count;
    pending_.empty_cache->request_count = pending_.requests.size();
  } else if (is_released) {
    pending_.has_released_segment = true;
  }
}

bool RequestReader::is_freed_by_empty_cache(EventKind kind, std::uint32_t pool) {
  if (!is_release(kind) || pending_.has_released_segment) return false;
  if (!pending_.empty_cache || !pending_.empty_cache->is_running) return false;
  const std::uint32_t emptied_pool = pending_.empty_cache_request().pool;
  return pending_.first_unassigned_event() == pending_.events.size() && (emptied_pool == 0 || emptied_pool == pool);
}

// Older traces lack kPoolRelease: a pool is released at its first freed segment, unless in use (it frees to grow).
void RequestReader::add_missing_release(std::uint32_t pool, bool is_by_empty_cache) {
  if (pool == 0 || pools_in_use_.contains(pool) || !released_pools_.insert(pool).second) return;
  Request release;
  release.kind = RequestKind::kPoolRelease;
  release.pool = pool;
  if (is_by_empty_cache) {
    std::size_t& empty_cache = pending_.empty_cache->request;
    pending_.requests.insert(pending_.requests.begin() + static_cast<std::ptrdiff_t>(empty_cache), release);
    ++empty_cache;
  } else {
    pending_.requests.push_back(release);
  }
}

void RequestReader::append(RequestKind kind, const Event& event, std::uint64_t sequence, std::uint32_t block) {
  Request request;
  request.kind = kind;
  request.size = event.size;
  request.sequence = sequence;
  request.address = event.address;
  request.block = block;
  const ResolvedLocation& location = resolve(event.location);
  request.stream = location.stream;
  request.pool = location.pool;
  pending_.requests.push_back(request);
}

void RequestReader::flush(Batch& batch) {
  const auto offset = static_cast<std::uint32_t>(batch.events.size());
  for (Request& request : pending_.requests) {
    request.first_event += offset;
    if (request.kind == RequestKind::kFree || request.kind == RequestKind::kFreeCompleted) {
      unused_blocks_.push_back(request.block);
    }
  }
  batch.requests.insert(batch.requests.end(), pending_.requests.begin(), pending_.requests.end());
  batch.events.insert(batch.events.end(), pending_.events.begin(), pending_.events.end());
  pending_.clear();
}

std::size_t RequestReader::Pending::first_unassigned_event() const {
  if (!empty_cache) return 0;
  const Request& request = requests[empty_cache->request];
  return std::size_t{request.first_event} + request.event_count;
}

// Keep the vectors' memory.
void RequestReader::Pending::clear() {
  requests.clear();
  events.clear();
  empty_cache.reset();
  has_released_segment = false;
}

}  // namespace alloctrace::what_if
