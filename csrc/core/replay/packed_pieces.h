// Pieces of a device in a checkpoint, packed to about a third of their size as differences between successive pieces.
// Checkpoints are most of the memory of the replay of a long trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../base/pages.h"
#include "piece.h"

namespace alloctrace {

class PackedPieces {
 public:
  PackedPieces() = default;
  explicit PackedPieces(const Pieces& pieces);

  // Restore all pieces at their indices; unused pieces are default values.
  void unpack(Pieces& pieces) const;
  std::size_t bytes() const;

 private:
  // Number of pieces packed at a time, never across two parts.
  static constexpr std::size_t kPiecesPerBatch = 1024;
  // A part never grows beyond its capacity: copying it would cost as much as packing.
  using Part = std::vector<std::uint8_t, LargePageAllocator<std::uint8_t>>;

  std::size_t count_ = 0;
  std::vector<Part> parts_;
};

}  // namespace alloctrace
