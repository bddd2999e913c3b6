#include "requests.h"

#include <algorithm>

namespace alloctrace::what_if {

bool RequestReader::next(Batch& batch, std::size_t wanted) {
  batch.requests.clear();
  batch.events.clear();
  batch.inherited.clear();
  const std::vector<Chunk>& chunks = trace_->chunks();
  while (batch.requests.size() < wanted && chunk_ < chunks.size()) {
    const Chunk& chunk = chunks[chunk_++];
    decoded_.clear();
    try {
      trace_->decode(chunk, decoded_);
    } catch (const DecodeError&) {
      decoded_.clear();  // a damaged trace: whoever asks has looked at that
    }
    for (std::size_t i = 0; i < decoded_.size(); ++i) take(decoded_[i], chunk.first_sequence + i, batch);
    events_read_ += chunk.event_count;
  }
  if (chunk_ == chunks.size()) flush(batch);
  return !batch.requests.empty() || chunk_ < chunks.size();
}

const RequestReader::Place& RequestReader::place(std::uint32_t location) {
  if (location >= places_.size()) places_.resize(location + std::size_t{1});
  std::optional<Place>& known = places_[location];
  if (!known) {
    const Location& where = trace_->definitions().location(location);
    known = Place{};
    known->is_here = where.device_type == device_type_ && where.device_index == device_index_;
    known->stream = where.stream;
    known->pool = pool_number(where.pool_first, where.pool_second);
  }
  return *known;
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

void RequestReader::take(const Event& event, std::uint64_t sequence, Batch& batch) {
  if (event.kind == EventKind::kEmptyCache) {  // of all devices, whatever its location says
    if (trace_->definitions().location(event.location).device_type != device_type_) return;
    hold(RequestKind::kEmptyCache, event, sequence);
    held_.back().first_event = static_cast<std::uint32_t>(held_events_.size());
    emptied_ = static_cast<std::ptrdiff_t>(held_.size()) - 1;
    emptied_by_ = event.thread;
    emptied_at_ = held_.size();
    is_emptying_ = true;
    return;
  }
  if (!place(event.location).is_here) return;
  switch (event.kind) {
    case EventKind::kAlloc:
    case EventKind::kOom:
      return allocate(event, sequence, batch);
    case EventKind::kFreeRequested:
      return give_up(event, sequence);
    case EventKind::kFreeCompleted:
      return complete(event, sequence);
    case EventKind::kSegmentAlloc:
    case EventKind::kSegmentFree:
    case EventKind::kSegmentMap:
    case EventKind::kSegmentUnmap:
      return take_segment(event);
    case EventKind::kStreamUse:
      if (LiveBlock* const block = live_.find(event.address)) {
        block->is_awaited |= block->stream != place(event.location).stream;
      }
      return;
    case EventKind::kConfig:
      hold(RequestKind::kSettings, event, sequence, static_cast<std::uint32_t>(settings_.size()));
      settings_.push_back(trace_->definitions().string(static_cast<std::uint32_t>(ConfigFields(event).settings)));
      return;
    case EventKind::kPoolUse:
    case EventKind::kPoolRelease:
    case EventKind::kPoolOnOom:
    case EventKind::kPoolAllocator:
    case EventKind::kNoSplit:
      return take_pool(event, sequence);
    case EventKind::kCapture:
      hold(RequestKind::kCapture, event, sequence);
      held_.back().size = PoolSwitchFields(event).begins;
      return;
    case EventKind::kMemoryFraction:
      return hold(RequestKind::kFraction, event, sequence);
    case EventKind::kAllocatorState:
      if (!has_begun_) state_left_ = AllocatorStateFields(event).entries;
      return;
    case EventKind::kStateSegment:
    case EventKind::kStateBlock:
      return take_inherited(event, batch);
    default:
      return;
  }
}

void RequestReader::take_pool(const Event& event, std::uint64_t sequence) {
  const std::uint32_t pool = place(event.location).pool;
  const bool begins = PoolSwitchFields(event).begins != 0;
  switch (event.kind) {
    case EventKind::kPoolUse:
      hold(begins ? RequestKind::kPoolBegins : RequestKind::kPoolEnds, event, sequence);
      if (begins) {
        pools_in_use_.insert(pool);
        released_pools_.erase(pool);
      } else {
        pools_in_use_.erase(pool);
      }
      return;
    case EventKind::kPoolRelease:
      if (PoolReleaseFields(event).uses_left == 0 && released_pools_.insert(pool).second) {
        hold(RequestKind::kPoolRelease, event, sequence);
      }
      return;
    case EventKind::kPoolOnOom:
      hold(RequestKind::kPoolOnOom, event, sequence);
      held_.back().size = begins;
      if (begins) {
        pools_on_oom_.insert(pool);
      } else {
        pools_on_oom_.erase(pool);
      }
      return;
    default:
      hold(event.kind == EventKind::kNoSplit ? RequestKind::kNoSplit : RequestKind::kOwnMemory, event, sequence);
  }
}

std::uint32_t RequestReader::asked_pool(const Event& event) {
  const std::uint32_t pool = place(event.location).pool;
  return pools_on_oom_.contains(pool) && !pools_in_use_.contains(pool) ? 0 : pool;
}

void RequestReader::take_inherited(const Event& event, Batch& batch) {
  if (state_left_ == 0) return;
  --state_left_;
  Inherited row;
  row.address = event.address;
  row.size = event.size;
  row.stream = place(event.location).stream;
  row.pool = place(event.location).pool;
  if (event.kind == EventKind::kStateSegment) {
    const std::uint64_t flags = StateSegmentFields(event).flags;
    row.is_segment = true;
    row.is_large = (flags & kLargeSegment) != 0;
    row.is_expandable = (flags & kExpandableSegment) != 0;
  } else {
    row.state = StateBlockFields(event).state;
    if (row.state != kBlockInactive) {
      row.block = new_block();
      const bool is_given_up = row.state == kBlockPendingFree;
      *live_.insert(event.address).first = {row.stream, row.block, is_given_up, is_given_up};
      if (is_given_up) ++waiting_;
    }
  }
  batch.inherited.push_back(row);
}

void RequestReader::allocate(const Event& event, std::uint64_t sequence, Batch& batch) {
  has_begun_ = true;
  const bool is_refused = event.kind == EventKind::kOom;
  // What the request forced to complete comes after it.
  std::vector<Request> forced;
  if ((gave_back_ || is_refused) && waiting_ == 0) {
    const auto begin = held_.begin() + static_cast<std::ptrdiff_t>(emptied_at_);
    const auto is_completion = [](const Request& one) { return one.kind == RequestKind::kComplete; };
    const auto rest = std::stable_partition(begin, held_.end(), std::not_fn(is_completion));
    forced.assign(rest, held_.end());
    held_.erase(rest, held_.end());
  }
  std::uint32_t block = 0;
  if (!is_refused) {
    block = new_block();
    const auto [known, is_new] = live_.insert(event.address);
    if (!is_new) hold(RequestKind::kFree, event, sequence, known->number);  // its free is missing
    *known = {place(event.location).stream, block};
  }
  std::size_t begin = 0;
  if (emptied_ >= 0)
    begin =
        held_[static_cast<std::size_t>(emptied_)].first_event + held_[static_cast<std::size_t>(emptied_)].event_count;
  hold(is_refused ? RequestKind::kRefused : RequestKind::kAllocate, event, sequence, block);
  held_.back().pool = asked_pool(event);
  held_.back().first_event = static_cast<std::uint32_t>(begin);
  held_.back().event_count = static_cast<std::uint32_t>(held_events_.size() - begin);
  held_.insert(held_.end(), forced.begin(), forced.end());
  flush(batch);
}

void RequestReader::give_up(const Event& event, std::uint64_t sequence) {
  has_begun_ = true;
  if (event.thread == emptied_by_) is_emptying_ = false;
  LiveBlock* const known = live_.find(event.address);
  if (!known) return;  // older than the recording
  known->is_given_up = true;
  hold(RequestKind::kGiveUp, event, sequence, known->number);
  ++waiting_;
}

void RequestReader::complete(const Event& event, std::uint64_t sequence) {
  const LiveBlock* const known = live_.find(event.address);
  // A free that waits for nothing is one event, or two, one right after the other.
  if (!known || !known->is_given_up) give_up(event, sequence);
  if (!known) return;
  if (!held_.empty() && held_.back().kind == RequestKind::kGiveUp && held_.back().block == known->number &&
      !known->is_awaited) {
    held_.back().kind = RequestKind::kFree;
  } else {
    hold(RequestKind::kComplete, event, sequence, known->number);
  }
  if (waiting_ != 0) --waiting_;
  live_.erase(event.address);
}

void RequestReader::take_segment(const Event& event) {
  const bool goes = is_given_back(event.kind);
  const std::uint32_t pool = place(event.location).pool;
  bool is_by_empty_cache = goes && is_emptying_ && !gave_back_;
  if (is_by_empty_cache) {
    const Request& emptied = held_[static_cast<std::size_t>(emptied_)];
    is_by_empty_cache =
        emptied.first_event + emptied.event_count == held_events_.size() && (emptied.pool == 0 || emptied.pool == pool);
  }
  // Where no event says when a pool was let go (older traces have none): at the latest when the first of its segments
  // goes. (One that is in use gives a segment back for a larger one.)
  if (goes && pool != 0 && !pools_in_use_.contains(pool) && released_pools_.insert(pool).second) {
    Request release;
    release.kind = RequestKind::kPoolRelease;
    release.pool = pool;
    if (is_by_empty_cache) {
      held_.insert(held_.begin() + emptied_, release);
      ++emptied_;
    } else {
      held_.push_back(release);
    }
  }
  held_events_.push_back({event.kind, event.address, event.size});
  if (is_by_empty_cache) {
    ++held_[static_cast<std::size_t>(emptied_)].event_count;
    emptied_at_ = held_.size();
  } else if (goes) {
    gave_back_ = true;
  }
}

void RequestReader::hold(RequestKind kind, const Event& event, std::uint64_t sequence, std::uint32_t block) {
  Request request;
  request.kind = kind;
  request.size = event.size;
  request.sequence = sequence;
  request.address = event.address;
  request.block = block;
  const Place& at = place(event.location);
  request.stream = at.stream;
  request.pool = at.pool;
  held_.push_back(request);
}

void RequestReader::flush(Batch& batch) {
  const auto offset = static_cast<std::uint32_t>(batch.events.size());
  for (Request& request : held_) {
    request.first_event += offset;
    if (request.kind == RequestKind::kFree || request.kind == RequestKind::kComplete) {
      unused_blocks_.push_back(request.block);
    }
  }
  batch.requests.insert(batch.requests.end(), held_.begin(), held_.end());
  batch.events.insert(batch.events.end(), held_events_.begin(), held_events_.end());
  held_.clear();
  held_events_.clear();
  emptied_ = -1;
  is_emptying_ = false;
  emptied_at_ = 0;
  gave_back_ = false;
}

}  // namespace alloctrace::what_if
