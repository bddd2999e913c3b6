#include "decoding_thread.h"

#include <utility>

#include "../base/blocked_signals.h"

namespace alloctrace {

DecodingThread::DecodingThread(std::shared_ptr<const TraceReader> trace, std::size_t first) : trace_(std::move(trace)) {
  const BlockedSignals inherited;
  thread_ = std::thread([this, first] { decode_all(first); });
}

DecodingThread::~DecodingThread() {
  queue_.close();
  thread_.join();
}

void DecodingThread::next(std::vector<Event>& events) {
  queue_.recycle({std::move(events), nullptr});
  Decoded decoded = queue_.next().value();
  events = std::move(decoded.events);
  if (decoded.error) std::rethrow_exception(decoded.error);
}

void DecodingThread::decode_all(std::size_t first) {
  const std::vector<Chunk>& chunks = trace_->chunks();
  for (std::size_t index = first; index < chunks.size(); ++index) {
    std::optional<Decoded> decoded = queue_.acquire();
    if (!decoded) return;
    decoded->events.clear();
    try {
      trace_->decode(chunks[index], decoded->events);
    } catch (...) {  // std::bad_alloc too: next() rethrows the exception for this chunk
      decoded->events.clear();
      decoded->error = std::current_exception();
    }
    queue_.put(std::move(*decoded));
  }
}

}  // namespace alloctrace
