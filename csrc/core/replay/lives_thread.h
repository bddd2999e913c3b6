// Gathers the evidence of how blocks lived on a thread of its own, a little behind the replay: both take about as long,
// and the one needs of the other only what a LifeChange says.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "../format/event.h"
#include "life_change.h"
#include "run_evidence.h"

namespace alloctrace {

class LivesThread {
 public:
  // Throws std::system_error when the system cannot start a thread.
  explicit LivesThread(RunEvidence& evidence);
  ~LivesThread();
  LivesThread(const LivesThread&) = delete;
  LivesThread& operator=(const LivesThread&) = delete;

  // The next events, the first of which has this number, and what each did. Both vectors come back empty, with memory
  // of earlier ones.
  void take(std::uint64_t first_sequence, std::vector<Event>& events, std::vector<LifeChange>& changes);
  // Waits until all are taken. Throws what taking them threw.
  void finish();

 private:
  struct Batch {
    std::uint64_t first_sequence = 0;
    std::vector<Event> events;
    std::vector<LifeChange> changes;
  };
  static constexpr std::size_t kWaiting = 2;  // batches; each takes up to 7 MB

  void take_all();
  void stop();

  RunEvidence& evidence_;
  std::mutex mutex_;
  std::condition_variable is_room_, is_ready_;
  std::deque<Batch> waiting_;
  std::vector<Batch> spare_;  // that were taken: their memory is used again
  bool is_last_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace alloctrace
