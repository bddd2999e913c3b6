// Holds CUDA events back while the allocator's state is being read, so that state and events can be written in their
// true order.
#pragma once

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "../core/format/event.h"

namespace alloctrace::torch_side {

struct HeldEvent {
  Event event;
  int device;          // index of the CUDA device
  bool state_is_here;  // the allocator's state was read at this event of ours, under the device's lock
};

// The mutex is a leaf: hooks take it under an allocator's lock, and its holder calls no allocator.
class EventHold {
 public:
  bool is_on() const { return on_.load(std::memory_order_acquire); }
  void begin() { on_.store(true, std::memory_order_release); }

  // False when nothing is held any more: the caller then delivers the event itself. Hooks of one device call this under
  // that device's lock, so their order is kept.
  [[gnu::cold, gnu::noinline]] bool keep(const HeldEvent& event) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!is_on()) return false;
    events_.push_back(event);
    return true;
  }

  // Gives all held events to `deliver`, in order, and lets events pass again.
  template <typename Deliver>
  void end(Deliver deliver) {
    std::vector<HeldEvent> events;
    for (;;) {
      {
        const std::lock_guard<std::mutex> guard(mutex_);
        events.clear();
        events.swap(events_);
        if (events.empty()) {
          on_.store(false, std::memory_order_release);
          return;
        }
      }
      for (const HeldEvent& held : events) deliver(held);
    }
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> on_{false};
  std::vector<HeldEvent> events_;
};

}  // namespace alloctrace::torch_side
