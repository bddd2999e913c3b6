// Integer hash with random seeds: the keys of a crafted trace cannot be chosen to collide, which would make each search
// linear. The seeds differ between processes, so no output may depend on a table's order.
#pragma once

#include <sys/random.h>

#include <cstddef>
#include <cstdint>

namespace alloctrace {

struct HashSeeds {
  std::uint64_t mask = 0, factor = 0;

  HashSeeds() {
    if (getentropy(this, sizeof *this) != 0) *this = HashSeeds(0x9E3779B97F4A7C15u, 0xD1342543DE82EF95u);
    factor |= 1;
  }

 private:
  HashSeeds(std::uint64_t fixed_mask, std::uint64_t fixed_factor) : mask(fixed_mask), factor(fixed_factor) {}
};
inline const HashSeeds kHashSeeds;

// Hash `value` so that all its bits affect the low bits of the result.
inline std::uint64_t seeded_hash(std::uint64_t value) {
  std::uint64_t mixed = (value ^ kHashSeeds.mask) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ mixed >> 32) * kHashSeeds.factor;
  return mixed ^ mixed >> 32;
}

struct SeededHash {
  std::size_t operator()(std::uint64_t value) const { return static_cast<std::size_t>(seeded_hash(value)); }
};

}  // namespace alloctrace
