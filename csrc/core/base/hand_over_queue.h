// Bounded queue from one thread to another. Consumed items go back to the producer, for the capacity of their vectors.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace alloctrace {

template <typename Item>
class HandOverQueue {
 public:
  explicit HandOverQueue(std::size_t max_ready) : max_ready_(max_ready) {}

  // Producer: wait for room, and return an item to fill: a recycled one, or a new one. Returns nothing after close().
  std::optional<Item> acquire() {
    std::unique_lock<std::mutex> lock(mutex_);
    has_room_.wait(lock, [this] { return is_closed_ || ready_.size() < max_ready_; });
    if (is_closed_) return std::nullopt;
    if (recycled_.empty()) return Item{};
    Item item = std::move(recycled_.back());
    recycled_.pop_back();
    return item;
  }

  // Producer: hand over the item for which acquire() has found room.
  void put(Item item) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ready_.push_back(std::move(item));
    }
    has_item_.notify_one();
  }

  // Consumer: wait for the next item. Returns nothing after close(), once all items are consumed.
  std::optional<Item> next() {
    std::unique_lock<std::mutex> lock(mutex_);
    has_item_.wait(lock, [this] { return is_closed_ || !ready_.empty(); });
    if (ready_.empty()) return std::nullopt;
    Item item = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    has_room_.notify_one();
    return item;
  }

  // Consumer: give a consumed item back.
  void recycle(Item item) {
    const std::lock_guard<std::mutex> lock(mutex_);
    recycled_.push_back(std::move(item));
  }

  // From either thread: no item follows, or none is wanted.
  void close() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closed_ = true;
    }
    has_room_.notify_one();
    has_item_.notify_one();
  }

 private:
  const std::size_t max_ready_;
  std::mutex mutex_;
  std::condition_variable has_room_, has_item_;
  std::deque<Item> ready_;
  std::vector<Item> recycled_;
  bool is_closed_ = false;
};

}  // namespace alloctrace
