#include "lifetime_thread.h"

#include <utility>

#include "../base/blocked_signals.h"

namespace alloctrace {

LifetimeThread::LifetimeThread(RunEvidence& evidence) : evidence_(evidence) {
  const BlockedSignals inherited;
  thread_ = std::thread([this] { run(); });
}

LifetimeThread::~LifetimeThread() { stop(); }

void LifetimeThread::enqueue(std::uint64_t first_sequence, std::vector<Event>& events,
                             std::vector<LifetimeChange>& changes) {
  Batch batch = queue_.acquire().value();
  batch.first_sequence = first_sequence;
  batch.events.swap(events);
  batch.changes.swap(changes);
  queue_.put(std::move(batch));
  events.clear();
  changes.clear();
}

void LifetimeThread::finish() {
  stop();
  if (error_) std::rethrow_exception(error_);
}

void LifetimeThread::stop() {
  queue_.close();
  if (thread_.joinable()) thread_.join();
}

void LifetimeThread::run() {
  while (std::optional<Batch> batch = queue_.next()) {
    // After an exception, keep emptying the queue, or enqueue() would wait forever; finish() rethrows.
    if (!error_) {
      try {
        for (std::size_t index = 0; index < batch->events.size(); ++index) {
          evidence_.record_lifetimes(batch->events[index], batch->first_sequence + index, batch->changes[index]);
        }
      } catch (...) {
        error_ = std::current_exception();
      }
    }
    queue_.recycle(std::move(*batch));
  }
}

}  // namespace alloctrace
