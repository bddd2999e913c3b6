// Address ranges, allocated from the highest address down, as NVIDIA's driver does: of two free blocks of equal size
// torch takes the lower address, so in another order programs would get different blocks than on a GPU.
#pragma once

#include <cstdint>
#include <map>

namespace simcuda {

class FreeRanges {
 public:
  void give(uint64_t start, uint64_t size);
  // The start of a range of that size and alignment, or 0.
  uint64_t take(uint64_t size, uint64_t alignment);
  // Takes exactly this range; it must be free.
  void take_at(uint64_t start, uint64_t size);
  const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // start -> size; neighbours are merged
};

// Reserves address space that costs nothing until it is used. 0 when the process has none left.
uint64_t reserve_addresses(uint64_t size, uint64_t alignment);
void release_addresses(uint64_t start, uint64_t size);
// Makes a reserved range usable, filled with zeros; or unusable again, discarding its content.
bool back_addresses(uint64_t start, uint64_t size);
void unback_addresses(uint64_t start, uint64_t size);
// Zeros, without using memory for them.
void zero_addresses(uint64_t start, uint64_t size);

}  // namespace simcuda
