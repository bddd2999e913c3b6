#include "lives_thread.h"

#include <utility>

#include "../base/blocked_signals.h"

namespace alloctrace {

LivesThread::LivesThread(RunEvidence& evidence) : evidence_(evidence) {
  const BlockedSignals inherited;
  thread_ = std::thread([this] { take_all(); });
}

LivesThread::~LivesThread() { stop(); }

void LivesThread::take(std::uint64_t first_sequence, std::vector<Event>& events, std::vector<LifeChange>& changes) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    is_room_.wait(lock, [this] { return waiting_.size() < kWaiting; });
    waiting_.push_back({first_sequence, std::move(events), std::move(changes)});
    if (spare_.empty()) spare_.emplace_back();
    events = std::move(spare_.back().events);
    changes = std::move(spare_.back().changes);
    spare_.pop_back();
  }
  is_ready_.notify_one();
  events.clear();
  changes.clear();
}

void LivesThread::finish() {
  stop();
  if (error_) std::rethrow_exception(error_);
}

void LivesThread::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_last_ = true;
  }
  is_ready_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void LivesThread::take_all() {
  while (true) {
    Batch batch;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      is_ready_.wait(lock, [this] { return is_last_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      batch = std::move(waiting_.front());
      waiting_.pop_front();
    }
    is_room_.notify_one();
    // After an error the rest is let go by: whoever replays hears of it at the end.
    if (!error_) {
      try {
        for (std::size_t index = 0; index < batch.events.size(); ++index) {
          evidence_.take_lives(batch.events[index], batch.first_sequence + index, batch.changes[index]);
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
