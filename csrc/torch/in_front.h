// How an allocator of ours comes to stand in front of torch's, and leaves again.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace alloctrace::torch_side {

// torch takes an allocator only at the priority of the present one or above, and does not report that priority. The
// lowest that it takes leaves the program's own later calls as free as before. `set` takes a priority; `is_set` says
// whether torch took the allocator.
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

// Front is an allocator of ours: constructed from the one behind it, which upstream() returns. Slot is where torch
// keeps the current allocator: current(), and set(before, after). Not to be called by several threads at once.
template <typename Front, typename Slot>
class InFront {
 public:
  // Puts a Front in front of the current allocator, which stays as it is if it is one already.
  Front& install() {
    auto* const current = Slot::current();
    installed_ = is_ours() ? static_cast<Front*>(current) : &front_of(current);
    if (current != installed_) Slot::set(current, installed_);
    return *installed_;
  }

  // Puts the former allocator back, if ours is still the current one. False if it is not: ours then stays where it is,
  // behind another, and only forwards.
  bool remove() {
    Front* const leaving = installed_;
    installed_ = nullptr;
    if (!leaving || Slot::current() != leaving) return !leaving;
    Slot::set(leaving, leaving->upstream());
    return true;
  }

  // Null when none is installed.
  Front* installed() const { return installed_; }

  bool is_ours() const {
    for (const Front* known : fronts_) {
      if (known == Slot::current()) return true;
    }
    return false;
  }

 private:
  template <typename Upstream>
  Front& front_of(Upstream* upstream) {
    for (Front* known : fronts_) {
      if (known->upstream() == upstream) return *known;
    }
    fronts_.push_back(nullptr);
    fronts_.back() = std::make_unique<Front>(upstream).release();
    return *fronts_.back();
  }

  std::vector<Front*> fronts_;  // never destroyed: storages and graphs keep pointers to the allocator that made them
  Front* installed_ = nullptr;
};

}  // namespace alloctrace::torch_side
