#include "decoding_thread.h"

#include <utility>

#include "../base/thread.h"

namespace alloctrace {

DecodingThread::DecodingThread(std::shared_ptr<const TraceReader> trace, std::size_t first) : trace_(std::move(trace)) {
  const BlockedSignals inherited;
  thread_ = std::thread([this, first] { decode_all(first); });
}

DecodingThread::~DecodingThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  has_room_.notify_one();
  thread_.join();
}

void DecodingThread::next(std::vector<Event>& events) {
  Decoded decoded;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    recycled_.push_back(std::move(events));
    has_chunk_.wait(lock, [this] { return !ready_.empty(); });
    decoded = std::move(ready_.front());
    ready_.pop_front();
  }
  has_room_.notify_one();
  events = std::move(decoded.events);
  if (decoded.error) std::rethrow_exception(decoded.error);
}

void DecodingThread::decode_all(std::size_t first) {
  const std::vector<Chunk>& chunks = trace_->chunks();
  for (std::size_t index = first; index < chunks.size(); ++index) {
    Decoded decoded;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      has_room_.wait(lock, [this] { return stopped_ || ready_.size() < kMaxReadyChunks; });
      if (stopped_) return;
      if (!recycled_.empty()) {
        decoded.events = std::move(recycled_.back());
        recycled_.pop_back();
      }
    }
    decoded.events.clear();
    try {
      trace_->decode(chunks[index], decoded.events);
    } catch (...) {  // std::bad_alloc too: next() rethrows the exception for this chunk
      decoded.events.clear();
      decoded.error = std::current_exception();
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ready_.push_back(std::move(decoded));
    }
    has_chunk_.notify_one();
  }
}

}  // namespace alloctrace
