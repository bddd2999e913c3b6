// The pieces of a device in a checkpoint, in about a third of their memory: as differences from one to the next, most
// of which are small. A checkpoint is what a replay of a long trace has most of in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../base/varint.h"
#include "piece.h"

namespace alloctrace {

class PackedPieces {
 public:
  PackedPieces() = default;
  explicit PackedPieces(const Pieces& pieces);

  // The same pieces at the same indices. Of unused ones only that they are.
  void unpack(Pieces& pieces) const;
  std::size_t bytes() const { return packed_.capacity(); }

 private:
  std::size_t count_ = 0;
  Bytes packed_;
};

}  // namespace alloctrace
