// Integer hashes, unseeded and seeded.
//
// A table whose keys come from a file needs the seeded hash: AddressMap, and SeededHash for std::unordered_map. The
// keys of a crafted trace could otherwise be chosen to collide, which would make each search linear. The seeds differ
// between processes, so no output may depend on the order of such a table.
//
// The unseeded hash suffices for the recording half, whose keys are the program's own, and for a table of a fixed
// number of slots, in which a collision replaces an entry.
#pragma once

#include <sys/random.h>

#include <cstddef>
#include <cstdint>

namespace alloctrace {

// 2^64 divided by the golden ratio, rounded to an odd number: a factor that spreads successive keys. Part of the trace
// format (event_codec.cpp).
inline constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15u;

// Return a slot of a table of 2^bits slots: the highest bits of a product depend on all bits of the key.
inline std::size_t hash_to_slot(std::uint64_t key, unsigned bits) {
  return static_cast<std::size_t>(key * kGoldenRatio >> (64 - bits));
}

// Combine a hash with a further value.
inline std::uint64_t extend_hash(std::uint64_t hash, std::uint64_t value) {
  const std::uint64_t mixed = (hash ^ value) * kGoldenRatio;
  return mixed ^ mixed >> 32;
}

struct HashSeeds {
  std::uint64_t mask = 0, factor = 0;

  HashSeeds() {
    if (getentropy(this, sizeof *this) != 0) *this = HashSeeds(kGoldenRatio, 0xD1342543DE82EF95u);
    factor |= 1;
  }

 private:
  HashSeeds(std::uint64_t fixed_mask, std::uint64_t fixed_factor) : mask(fixed_mask), factor(fixed_factor) {}
};
inline const HashSeeds kHashSeeds;

// Hash `value` so that all its bits affect the low bits of the result.
inline std::uint64_t seeded_hash(std::uint64_t value) {
  const std::uint64_t mixed = extend_hash(value, kHashSeeds.mask) * kHashSeeds.factor;
  return mixed ^ mixed >> 32;
}

struct SeededHash {
  std::size_t operator()(std::uint64_t value) const { return static_cast<std::size_t>(seeded_hash(value)); }
};

}  // namespace alloctrace
