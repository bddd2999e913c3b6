// The frames of all stacks: 16 bytes each and a slot or two of 4, since a long program has a million of them, and a
// table of the C++ library would take five times as much.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../format/definitions.h"

namespace alloctrace {

class FrameTable {
 public:
  // The id of a frame, counted from 1 in the order of add(); 0 when it is not there.
  std::uint32_t find(const FrameRecord& frame) const {
    if (slots_.empty()) return 0;
    for (std::size_t at = hash(frame) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == 0 || (*this)[slots_[at]] == frame) return slots_[at];
    }
  }
  // Takes the memory that the next add() needs. Throws std::bad_alloc.
  void make_room() {
    if (count_ % kChunk == 0 && chunks_.size() == count_ / kChunk) {
      chunks_.push_back(std::make_unique<FrameRecord[]>(kChunk));
    }
    if (4 * (std::size_t{count_} + 1) <= 3 * slots_.size()) return;
    std::vector<std::uint32_t> slots(slots_.empty() ? kFirstSlots : 2 * slots_.size());
    slots_.swap(slots);
    slots = {};
    for (std::uint32_t id = 1; id <= count_; ++id) slots_[free_slot((*this)[id])] = id;
  }
  std::uint32_t next() const { return count_ + 1; }
  // One that is not there, after make_room().
  std::uint32_t add(const FrameRecord& frame) noexcept {
    chunks_[count_ / kChunk][count_ % kChunk] = frame;
    slots_[free_slot(frame)] = ++count_;
    return count_;
  }

  std::uint32_t count() const { return count_; }
  const FrameRecord& operator[](std::uint32_t id) const { return chunks_[(id - 1) / kChunk][(id - 1) % kChunk]; }

 private:
  static constexpr std::uint32_t kChunk = 4096;
  static constexpr std::size_t kFirstSlots = 1024;

  static std::size_t hash(const FrameRecord& frame) noexcept {
    std::uint64_t mixed = (std::uint64_t{frame.parent} << 32 | frame.code) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 29 ^ frame.instruction ^ std::uint64_t{frame.module} << 32) * 0xC2B2AE3D27D4EB4Fu;
    return static_cast<std::size_t>(mixed ^ mixed >> 32);
  }
  std::size_t free_slot(const FrameRecord& frame) const noexcept {
    std::size_t at = hash(frame) & (slots_.size() - 1);
    while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<std::unique_ptr<FrameRecord[]>> chunks_;  // frames never move: a longer table needs no second copy
  std::vector<std::uint32_t> slots_;                    // ids by hash; a power of two of them, at most 3 of 4 taken
  std::uint32_t count_ = 0;
};

}  // namespace alloctrace
