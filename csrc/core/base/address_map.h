// Open-addressing hash map from addresses to small values: std::unordered_map took most of a replay's time.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "hash.h"
#include "pages.h"

namespace alloctrace {

template <typename Value>
class AddressMap {
 public:
  AddressMap() : slots_(16) {}

  std::size_t size() const { return size_; }

  const Value* find(std::uint64_t address) const {
    for (std::size_t at = home(address);; at = next(at)) {
      if (!slots_[at].used) return nullptr;
      if (slots_[at].address == address) return &slots_[at].value;
    }
  }
  Value* find(std::uint64_t address) { return const_cast<Value*>(std::as_const(*this).find(address)); }

  // Return the value of `address`, inserted if missing, and whether it was inserted.
  std::pair<Value*, bool> insert(std::uint64_t address) {
    if ((size_ + 1) * 4 > slots_.size() * 3) grow();
    for (std::size_t at = home(address);; at = next(at)) {
      Slot& slot = slots_[at];
      if (!slot.used) {
        slot = {address, Value{}, true};
        ++size_;
        return {&slot.value, true};
      }
      if (slot.address == address) return {&slot.value, false};
    }
  }

  void clear() {
    slots_.assign(slots_.size(), Slot{});
    size_ = 0;
  }

  // Remove the entry of `address`, if any. Invalidates pointers to all other entries.
  void erase(std::uint64_t address) {
    std::size_t hole = home(address);
    while (slots_[hole].address != address || !slots_[hole].used) {
      if (!slots_[hole].used) return;
      hole = next(hole);
    }
    // Shift later entries of the probe run into the hole: an unused slot inside the run would end searches early.
    for (std::size_t at = next(hole); slots_[at].used; at = next(at)) {
      const std::size_t start = home(slots_[at].address);
      if (((at - start) & mask()) >= ((at - hole) & mask())) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    slots_[hole].used = false;
    --size_;
  }

  // Prefetch the first slot of `address`: a large map exceeds the processor's caches.
  [[gnu::always_inline]] void prefetch(std::uint64_t address) const { __builtin_prefetch(&slots_[home(address)]); }

  void reserve(std::size_t size) {
    while ((size + 1) * 4 > slots_.size() * 3) grow();
  }

 private:
  struct Slot {
    std::uint64_t address = 0;
    Value value{};
    bool used = false;
  };
  std::size_t mask() const { return slots_.size() - 1; }
  std::size_t next(std::size_t at) const { return (at + 1) & mask(); }
  std::size_t home(std::uint64_t address) const { return static_cast<std::size_t>(seeded_hash(address)) & mask(); }
  void grow() {
    Slots old(slots_.size() * 2);
    old.swap(slots_);
    size_ = 0;
    for (Slot& slot : old) {
      if (slot.used) *insert(slot.address).first = std::move(slot.value);
    }
  }

  using Slots = std::vector<Slot, LargePageAllocator<Slot>>;

  Slots slots_;
  std::size_t size_ = 0;
};

}  // namespace alloctrace
