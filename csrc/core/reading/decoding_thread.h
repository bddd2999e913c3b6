// Decodes the chunks of a trace on a thread of its own, a few ahead of whoever takes them: decoding and what is done
// with the events then take two cores.
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
  // From chunk `first` to the last. Throws std::system_error when the system cannot start a thread.
  DecodingThread(std::shared_ptr<const TraceReader> trace, std::size_t first);
  ~DecodingThread();
  DecodingThread(const DecodingThread&) = delete;
  DecodingThread& operator=(const DecodingThread&) = delete;

  // The events of the next chunk, in place of what `events` had. Throws what TraceReader::decode threw for it.
  void next(std::vector<Event>& events);

 private:
  struct Decoded {
    std::vector<Event> events;
    std::exception_ptr error;
  };
  static constexpr std::size_t kAhead = 2;  // chunks; the events of each take up to 4 MB

  void decode_all(std::size_t first);

  std::shared_ptr<const TraceReader> trace_;
  std::mutex mutex_;
  std::condition_variable is_room_, is_ready_;
  std::deque<Decoded> ready_;
  std::vector<std::vector<Event>> spare_;  // that were taken: their memory is used again
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace alloctrace
