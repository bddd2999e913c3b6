// A hash of numbers whose collisions cannot be worked out beforehand: anyone may write a trace, and a table whose keys
// were chosen to collide is as slow as a list. Another one in each process, so no output may follow a table's order.
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

// All bits of the value reach the low bits of the hash.
inline std::uint64_t seeded_hash(std::uint64_t value) {
  std::uint64_t mixed = (value ^ kHashSeeds.mask) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ mixed >> 32) * kHashSeeds.factor;
  return mixed ^ mixed >> 32;
}

// For the containers of the standard library.
struct SeededHash {
  std::size_t operator()(std::uint64_t value) const { return static_cast<std::size_t>(seeded_hash(value)); }
};

}  // namespace alloctrace
