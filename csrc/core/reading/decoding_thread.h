// Thread that decodes the chunks of a trace ahead of the caller, which then processes events on another core.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "../format/event.h"
#include "trace_reader.h"

namespace alloctrace {

class DecodingThread {
 public:
  // Decode from chunk `first` to the last. Throws std::system_error if no thread can be started.
  DecodingThread(std::shared_ptr<const TraceReader> trace, std::size_t first);
  ~DecodingThread();
  DecodingThread(const DecodingThread&) = delete;
  DecodingThread& operator=(const DecodingThread&) = delete;

  // Replace `events` by those of the next chunk. Throws what TraceReader::decode threw for this chunk.
  void next(std::vector<Event>& events);

 private:
  struct Decoded {
    std::vector<Event> events;
    std::exception_ptr error;
  };
  static constexpr std::size_t kMaxReadyChunks = 2;  // each of up to 4 MB

  void decode_all(std::size_t first);

  std::shared_ptr<const TraceReader> trace_;
  std::mutex mutex_;
  std::condition_variable has_room_, has_chunk_;
  std::deque<Decoded> ready_;
  std::vector<std::vector<Event>> recycled_;  // buffers to decode into
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace alloctrace
