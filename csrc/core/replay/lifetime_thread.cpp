#include "lifetime_thread.h"

#include <utility>

#include "../base/thread.h"

namespace alloctrace {

LifetimeThread::LifetimeThread(RunEvidence& evidence) : evidence_(evidence) {
  const BlockedSignals inherited;
  thread_ = std::thread([this] { run(); });
}

LifetimeThread::~LifetimeThread() { stop(); }

void LifetimeThread::enqueue(std::uint64_t first_sequence, std::vector<Event>& events,
                             std::vector<LifetimeChange>& changes) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    has_room_.wait(lock, [this] { return waiting_.size() < kMaxWaiting; });
    waiting_.push_back({first_sequence, std::move(events), std::move(changes)});
    if (spare_.empty()) spare_.emplace_back();
    events = std::move(spare_.back().events);
    changes = std::move(spare_.back().changes);
    spare_.pop_back();
  }
  has_work_.notify_one();
  events.clear();
  changes.clear();
}

void LifetimeThread::finish() {
  stop();
  if (error_) std::rethrow_exception(error_);
}

void LifetimeThread::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  has_work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void LifetimeThread::run() {
  while (true) {
    Batch batch;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      has_work_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      batch = std::move(waiting_.front());
      waiting_.pop_front();
    }
    has_room_.notify_one();
    // After an exception, keep emptying the queue, or enqueue() would wait forever; finish() rethrows.
    if (!error_) {
      try {
        for (std::size_t index = 0; index < batch.events.size(); ++index) {
          evidence_.record_lifetimes(batch.events[index], batch.first_sequence + index, batch.changes[index]);
        }
      } catch (...) {
        error_ = std::current_exception();
      }
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    spare_.push_back(std::move(batch));
  }
}

}  // namespace alloctrace
