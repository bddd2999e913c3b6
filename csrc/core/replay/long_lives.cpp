#include "long_lives.h"

#include <algorithm>
#include <tuple>

namespace alloctrace {

void LongLives::begin_cell(std::uint64_t sequence, std::int64_t time_ns) {
  if (!begins_.empty()) close_cell();
  if (begins_.size() == kCells) halve();
  begins_.push_back(sequence);
  begins_ns_.push_back(time_ns);
  cell_begin_ = sequence;
  in_cell_ = 0;
}

std::uint16_t LongLives::cell_of(std::uint64_t sequence) const {
  const auto later = std::upper_bound(begins_.begin(), begins_.end(), sequence);
  // A block from before the first allocation belongs to the first cell.
  return static_cast<std::uint16_t>(later == begins_.begin() ? 0 : later - begins_.begin() - 1);
}

void LongLives::close_cell() {
  const auto died = static_cast<std::uint16_t>(begins_.size() - 1);
  for (const OpenDeath& death : open_) {
    deaths_.push_back({death.stack, cell_of(death.birth), died, 1, death.bytes});
  }
  open_.clear();
  if (deaths_.size() > 2 * compacted_ + 4096) compact();
}

// Two cells become one; a block that was born and died in the same one has not lived long any more.
void LongLives::halve() {
  for (std::size_t cell = 0; cell < kCells / 2; ++cell) {
    begins_[cell] = begins_[2 * cell];
    begins_ns_[cell] = begins_ns_[2 * cell];
  }
  begins_.resize(kCells / 2);
  begins_ns_.resize(kCells / 2);
  cell_length_ *= 2;
  for (Growth& growth : growths_) {
    for (std::size_t cell = 0; cell < kCells / 2; ++cell) {
      growth.cells[cell] = growth.cells[2 * cell] || growth.cells[2 * cell + 1];
    }
    growth.cells &= ~std::bitset<kCells>() >> kCells / 2;
  }
  for (Deaths& death : deaths_) {
    death.born /= 2;
    death.died /= 2;
  }
  std::erase_if(deaths_, [](const Deaths& death) { return death.born == death.died; });
  compact();
}

void LongLives::compact(DeathList& deaths) {
  const auto key = [](const Deaths& death) { return std::tie(death.stack, death.born, death.died); };
  std::sort(deaths.begin(), deaths.end(), [&](const Deaths& a, const Deaths& b) { return key(a) < key(b); });
  std::size_t kept = 0;
  for (const Deaths& death : deaths) {
    if (kept != 0 && key(deaths[kept - 1]) == key(death)) {
      deaths[kept - 1].blocks += death.blocks;
      deaths[kept - 1].bytes += death.bytes;
    } else {
      deaths[kept++] = death;
    }
  }
  deaths.resize(kept);
}

void LongLives::compact() {
  compact(deaths_);
  compacted_ = deaths_.size();
}

void LongLives::finish() {
  std::erase_if(open_, [this](const OpenDeath& death) { return death.sequence > last_allocation_; });
  if (!begins_.empty()) close_cell();
  compact();
  deaths_.shrink_to_fit();
  open_ = {};
}

}  // namespace alloctrace
