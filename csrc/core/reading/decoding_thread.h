// Thread that decodes the chunks of a trace ahead of the caller, which then processes events on another core.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "../base/hand_over_queue.h"
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

  // Replace `events` by those of the next chunk. Must be called at most once per chunk. Throws what
  // TraceReader::decode threw for this chunk.
  void next(std::vector<Event>& events);

 private:
  struct Decoded {
    std::vector<Event> events;
    std::exception_ptr error;
  };

  void decode_all(std::size_t first);

  std::shared_ptr<const TraceReader> trace_;
  HandOverQueue<Decoded> queue_{2};  // chunks of up to 4 MB
  std::thread thread_;
};

}  // namespace alloctrace
