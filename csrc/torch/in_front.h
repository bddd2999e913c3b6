// Installation of our allocators in front of torch's, and removal.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace alloctrace::torch_side {

// Set an allocator at the lowest priority that torch accepts, to leave later calls of the program free. torch rejects
// priorities below the current one and does not report it. `is_set`: whether torch accepted the last `set`.
template <typename Set, typename IsSet>
void set_at_lowest_priority(Set set, IsSet is_set) {
  for (int priority = 0; priority <= 255; ++priority) {
    set(static_cast<std::uint8_t>(priority));
    if (is_set()) return;
  }
}

inline void set_allocator(c10::DeviceType device, c10::Allocator* allocator) {
  set_at_lowest_priority([&](std::uint8_t priority) { c10::SetAllocator(device, allocator, priority); },
                         [&] { return c10::GetAllocator(device) == allocator; });
}

// Installer of a Front, our allocator, constructed from its upstream(). Slot accesses torch's current allocator:
// current(), and set(before, after). Not thread-safe.
template <typename Front, typename Slot>
class FrontInstaller {
 public:
  // Put a Front in front of the current allocator, unless the current one is a Front.
  Front& install() {
    auto* const current = Slot::current();
    installed_ = is_ours_current() ? static_cast<Front*>(current) : &find_or_create_front(current);
    if (current != installed_) Slot::set(current, installed_);
    return *installed_;
  }

  // Restore the former allocator. Return false if another is current: ours then stays behind it and only forwards.
  bool remove() {
    Front* const removed = installed_;
    installed_ = nullptr;
    if (!removed || Slot::current() != removed) return !removed;
    Slot::set(removed, removed->upstream());
    return true;
  }

  // Return the installed Front, or nullptr.
  Front* installed() const { return installed_; }

  bool is_ours_current() const {
    for (const Front* front : fronts_) {
      if (front == Slot::current()) return true;
    }
    return false;
  }

 private:
  template <typename Upstream>
  Front& find_or_create_front(Upstream* upstream) {
    for (Front* front : fronts_) {
      if (front->upstream() == upstream) return *front;
    }
    fronts_.push_back(nullptr);
    fronts_.back() = std::make_unique<Front>(upstream).release();
    return *fronts_.back();
  }

  std::vector<Front*> fronts_;  // never destroyed: storages and graphs keep pointers to their allocator
  Front* installed_ = nullptr;
};

}  // namespace alloctrace::torch_side
