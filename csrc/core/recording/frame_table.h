// Hash table of the frames of all stacks: 16 bytes per frame and one or two slots of 4 bytes. A long program has a
// million frames; std::unordered_map would need five times the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../format/definitions.h"

namespace alloctrace {

class FrameTable {
 public:
  // Return the id of a frame, counted from 1 in the order of add(); 0 if the frame is not in the table.
  std::uint32_t find(const FrameRecord& frame) const {
    if (slots_.empty()) return 0;
    for (std::size_t at = hash(frame) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == 0 || (*this)[slots_[at]] == frame) return slots_[at];
    }
  }
  // Allocate the memory that the next add() needs. Throws std::bad_alloc.
  void reserve_next() {
    if (count_ % kChunkFrames == 0 && chunks_.size() == count_ / kChunkFrames) {
      chunks_.push_back(std::make_unique<FrameRecord[]>(kChunkFrames));
    }
    if (4 * (std::size_t{count_} + 1) <= 3 * slots_.size()) return;
    std::vector<std::uint32_t> slots(slots_.empty() ? kMinSlots : 2 * slots_.size());
    slots_.swap(slots);
    slots = {};
    for (std::uint32_t id = 1; id <= count_; ++id) slots_[free_slot((*this)[id])] = id;
  }
  std::uint32_t next_id() const { return count_ + 1; }
  // Add a frame that is not in the table. Call reserve_next() first.
  std::uint32_t add(const FrameRecord& frame) noexcept {
    chunks_[count_ / kChunkFrames][count_ % kChunkFrames] = frame;
    slots_[free_slot(frame)] = ++count_;
    return count_;
  }

  std::uint32_t count() const { return count_; }
  const FrameRecord& operator[](std::uint32_t id) const {
    return chunks_[(id - 1) / kChunkFrames][(id - 1) % kChunkFrames];
  }

 private:
  static constexpr std::uint32_t kChunkFrames = 4096;
  static constexpr std::size_t kMinSlots = 1024;

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

  std::vector<std::unique_ptr<FrameRecord[]>> chunks_;  // in chunks: growth copies no frame
  std::vector<std::uint32_t> slots_;                    // ids by hash; a power of two, at most 3/4 used
  std::uint32_t count_ = 0;
};

}  // namespace alloctrace
