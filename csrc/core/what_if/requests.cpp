#include "requests.h"

#include <algorithm>

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
  if (event.kind == EventKind::kEmptyCache) {  // applies to all devices, not only to the event's location
    if (trace_->definitions().location(event.location).device_type != device_type_) return;
    append(RequestKind::kEmptyCache, event, sequence);
    pending_.back().first_event = static_cast<std::uint32_t>(pending_events_.size());
    empty_cache_index_ = static_cast<std::ptrdiff_t>(pending_.size()) - 1;
    empty_cache_thread_ = event.thread;
    after_empty_cache_ = pending_.size();
    is_emptying_cache_ = true;
    return;
  }
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
      if (LiveBlock* const block = live_.find(event.address)) {
        block->is_used_by_other_stream |= block->stream != resolve(event.location).stream;
      }
      return;
    case EventKind::kConfig:
      append(RequestKind::kSettings, event, sequence, static_cast<std::uint32_t>(settings_.size()));
      settings_.push_back(trace_->definitions().string(static_cast<std::uint32_t>(ConfigFields(event).settings)));
      return;
    case EventKind::kPoolUse:
    case EventKind::kPoolRelease:
    case EventKind::kPoolOnOom:
    case EventKind::kPoolAllocator:
    case EventKind::kNoSplit:
      return consume_pool(event, sequence);
    case EventKind::kCapture:
      append(RequestKind::kCapture, event, sequence);
      pending_.back().size = PoolSwitchFields(event).begins;
      return;
    case EventKind::kMemoryFraction:
      return append(RequestKind::kFraction, event, sequence);
    case EventKind::kAllocatorState:
      if (!has_request_) state_entries_left_ = AllocatorStateFields(event).entries;
      return;
    case EventKind::kStateSegment:
    case EventKind::kStateBlock:
      return consume_inherited(event, batch);
    default:
      return;
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
      pending_.back().size = begins;
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
  has_request_ = true;
  const bool is_failed = event.kind == EventKind::kOom;
  // Move frees that completed because of this request behind it.
  std::vector<Request> forced;
  if ((has_released_segment_ || is_failed) && pending_frees_ == 0) {
    const auto begin = pending_.begin() + static_cast<std::ptrdiff_t>(after_empty_cache_);
    const auto is_completion = [](const Request& request) { return request.kind == RequestKind::kFreeCompleted; };
    const auto completions = std::stable_partition(begin, pending_.end(), std::not_fn(is_completion));
    forced.assign(completions, pending_.end());
    pending_.erase(completions, pending_.end());
  }
  std::uint32_t block = 0;
  if (!is_failed) {
    block = new_block();
    const auto [live, is_new] = live_.insert(event.address);
    if (!is_new) append(RequestKind::kFree, event, sequence, live->number);  // previous free missing
    *live = {resolve(event.location).stream, block};
  }
  std::size_t begin = 0;
  if (empty_cache_index_ >= 0)
    begin = pending_[static_cast<std::size_t>(empty_cache_index_)].first_event +
            pending_[static_cast<std::size_t>(empty_cache_index_)].event_count;
  append(is_failed ? RequestKind::kFailedAllocation : RequestKind::kAllocate, event, sequence, block);
  pending_.back().pool = requested_pool(event);
  pending_.back().first_event = static_cast<std::uint32_t>(begin);
  pending_.back().event_count = static_cast<std::uint32_t>(pending_events_.size() - begin);
  pending_.insert(pending_.end(), forced.begin(), forced.end());
  flush(batch);
}

void RequestReader::request_free(const Event& event, std::uint64_t sequence) {
  has_request_ = true;
  if (event.thread == empty_cache_thread_) is_emptying_cache_ = false;
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
  if (!pending_.empty() && pending_.back().kind == RequestKind::kFreeRequested &&
      pending_.back().block == live->number && !live->is_used_by_other_stream) {
    pending_.back().kind = RequestKind::kFree;
  } else {
    append(RequestKind::kFreeCompleted, event, sequence, live->number);
  }
  if (pending_frees_ != 0) --pending_frees_;
  live_.erase(event.address);
}

void RequestReader::consume_segment(const Event& event) {
  const bool is_released = is_release(event.kind);
  const std::uint32_t pool = resolve(event.location).pool;
  bool is_by_empty_cache = is_released && is_emptying_cache_ && !has_released_segment_;
  if (is_by_empty_cache) {
    const Request& empty_cache = pending_[static_cast<std::size_t>(empty_cache_index_)];
    is_by_empty_cache = empty_cache.first_event + empty_cache.event_count == pending_events_.size() &&
                        (empty_cache.pool == 0 || empty_cache.pool == pool);
  }
  // Older traces lack kPoolRelease: a pool is released at its first freed segment, unless in use (it frees to grow).
  if (is_released && pool != 0 && !pools_in_use_.contains(pool) && released_pools_.insert(pool).second) {
    Request release;
    release.kind = RequestKind::kPoolRelease;
    release.pool = pool;
    if (is_by_empty_cache) {
      pending_.insert(pending_.begin() + empty_cache_index_, release);
      ++empty_cache_index_;
    } else {
      pending_.push_back(release);
    }
  }
  pending_events_.push_back({event.kind, event.address, event.size});
  if (is_by_empty_cache) {
    ++pending_[static_cast<std::size_t>(empty_cache_index_)].event_count;
    after_empty_cache_ = pending_.size();
  } else if (is_released) {
    has_released_segment_ = true;
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
  pending_.push_back(request);
}

void RequestReader::flush(Batch& batch) {
  const auto offset = static_cast<std::uint32_t>(batch.events.size());
  for (Request& request : pending_) {
    request.first_event += offset;
    if (request.kind == RequestKind::kFree || request.kind == RequestKind::kFreeCompleted) {
      unused_blocks_.push_back(request.block);
    }
  }
  batch.requests.insert(batch.requests.end(), pending_.begin(), pending_.end());
  batch.events.insert(batch.events.end(), pending_events_.begin(), pending_events_.end());
  pending_.clear();
  pending_events_.clear();
  empty_cache_index_ = -1;
  is_emptying_cache_ = false;
  after_empty_cache_ = 0;
  has_released_segment_ = false;
}

}  // namespace alloctrace::what_if
