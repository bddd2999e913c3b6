// Queue of CUDA events during a read of the allocator's state: state and events are then written in their true order.
#pragma once

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "../core/format/event.h"

namespace alloctrace::torch_side {

struct HeldEvent {
  Event event;
  int device;           // index of the CUDA device
  bool state_was_read;  // our SNAPSHOT event: the allocator's state was read here, under the device's lock
};

// Contract between the hooks and the thread that reads the state:
// - One thread at a time calls begin() and then finish(); any thread may call try_hold().
// - The mutex is a leaf lock: hooks lock it under an allocator's lock, and no allocator is called under it. Events are
//   delivered without it.
// - Events are held and delivered in the order in which their threads get the mutex: in true order for those that torch
//   reports under the device's lock.
// - finish() ends the hold in the same critical section in which it finds no event: an event is either held before, and
//   delivered by finish(), or delivered by its hook afterwards.
// - A hook under the device's lock that found the hold off delivers its event before the device's state is read.
// - Nothing is discarded, and there is no limit. Without memory, try_hold() throws and has held nothing.
class EventHold {
 public:
  bool is_on() const { return on_.load(std::memory_order_acquire); }
  void begin() { on_.store(true, std::memory_order_release); }

  // Return false once nothing is held: the caller then delivers. Called under the device's lock, so in true order.
  [[gnu::cold, gnu::noinline]] bool try_hold(const HeldEvent& event) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!is_on()) return false;
    events_.push_back(event);
    return true;
  }

  // Deliver all held events in order, then stop holding events.
  template <typename Deliver>
  void finish(Deliver deliver) {
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
