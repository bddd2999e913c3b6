// Thread that records the lifetimes of blocks, up to three batches behind the replay: recording takes about as
// long as the replay, and needs of it only LifetimeChange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "../base/hand_over_queue.h"
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

  void run();
  void stop();

  RunEvidence& evidence_;
  HandOverQueue<Batch> queue_{2};  // batches of up to 7 MB
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace alloctrace
