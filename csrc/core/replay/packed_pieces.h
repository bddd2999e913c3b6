// The pieces of a device in a checkpoint, in about a third of their memory: as differences from one to the next, most
// of which are small. A checkpoint is what a replay of a long trace has most of in memory.
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

  // The same pieces at the same indices. Of unused ones only that they are.
  void unpack(Pieces& pieces) const;
  std::size_t bytes() const;

 private:
  // So many pieces are packed at a time; they do not lie across two parts.
  static constexpr std::size_t kTogether = 1024;
  // Parts, of which none grows: a copy of all of it would cost as much as packing.
  using Part = std::vector<std::uint8_t, LargePageAllocator<std::uint8_t>>;

  std::size_t count_ = 0;
  std::vector<Part> parts_;
};

}  // namespace alloctrace
