// Thread that records the lifetimes of blocks, up to kMaxWaiting batches behind the replay: recording takes about as
// long as the replay, and needs of it only LifetimeChange.
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
#include "lifetime_change.h"
#include "run_evidence.h"

namespace alloctrace {

class LifetimeThread {
 public:
  // Throws std::system_error when the system cannot start a thread.
  explicit LifetimeThread(RunEvidence& evidence);
  ~LifetimeThread();
  LifetimeThread(const LifetimeThread&) = delete;
  LifetimeThread& operator=(const LifetimeThread&) = delete;

  // Queue consecutive events, from number `first_sequence`, and their effects; wait while the queue is full. Both
  // vectors return empty, with the capacity of processed ones.
  void enqueue(std::uint64_t first_sequence, std::vector<Event>& events, std::vector<LifetimeChange>& changes);
  // Wait until all events are recorded; rethrow the first exception of the thread.
  void finish();

 private:
  struct Batch {
    std::uint64_t first_sequence = 0;
    std::vector<Event> events;
    std::vector<LifetimeChange> changes;
  };
  static constexpr std::size_t kMaxWaiting = 2;  // batches of up to 7 MB

  void run();
  void stop();

  RunEvidence& evidence_;
  std::mutex mutex_;
  std::condition_variable has_room_, has_work_;
  std::deque<Batch> waiting_;
  std::vector<Batch> spare_;  // processed batches, for their capacity
  bool is_stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace alloctrace
