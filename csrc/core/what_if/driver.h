// The driver of the model: whether it has the memory that the allocator asks for, and at which address. A made-up one
// has a capacity and an order of addresses; a recorded one answers as the driver of the recording did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>

#include "requests.h"

namespace alloctrace::what_if {

// torch takes the free block with the lowest address among those of one size, so that the driver's addresses decide a
// little of what is reserved; they are not known before the program runs.
enum class AddressOrder : std::uint8_t { kLowest, kHighest, kRandom, kRecorded };

constexpr std::uint64_t kNoLimit = UINT64_MAX;

class Driver {
 public:
  // capacity: bytes that torch can have; kNoLimit.
  Driver(std::uint64_t capacity, AddressOrder order, std::uint64_t seed);

  // A recorded driver: the segment events that the next request caused.
  void expect(std::span<const SegmentEvent> events) { expected_ = events; }
  // Consumes the next expected event if it is of this kind. Frees and unmaps stand for each other.
  void happened(const SegmentEvent& event);
  // Whether a recorded driver also gives what it did not.
  void give_anything(bool anything) { gives_anything_ = anything; }

  // A segment of `size` bytes: its address, 0 if there is no memory.
  std::uint64_t allocate(std::uint64_t size);
  void free(std::uint64_t address, std::uint64_t size);
  // A segment that is there already.
  void inherit(std::uint64_t address, std::uint64_t size);
  // An expandable range: addresses without memory.
  std::uint64_t reserve_range(std::uint64_t size) { return next_range_ -= size; }
  bool map(std::uint64_t size);
  // Where the mapping is that was made just now; `otherwise` if no recording says so.
  std::uint64_t address_of_map(std::uint64_t otherwise) const {
    return expects(EventKind::kSegmentMap) ? expected_.front().address : otherwise;
  }
  void unmap(std::uint64_t size) { used_ -= size; }

  std::uint64_t used() const { return used_; }
  std::uint64_t peak_used() const { return peak_used_; }

 private:
  bool gives(EventKind kind, std::uint64_t size) const;
  void use(std::uint64_t size);
  bool expects(EventKind kind) const { return !expected_.empty() && expected_.front().kind == kind; }
  // 0 where no hole is large enough.
  std::uint64_t lowest(std::uint64_t size);
  std::uint64_t highest(std::uint64_t size);
  std::uint64_t random(std::uint64_t size);
  std::uint64_t place(std::uint64_t size);
  // Takes addresses out of the hole that has all of them; false where none does.
  bool occupy(std::uint64_t address, std::uint64_t size);

  std::uint64_t capacity_, used_ = 0, peak_used_ = 0;
  AddressOrder order_;
  std::mt19937_64 random_;
  std::span<const SegmentEvent> expected_;
  bool gives_anything_ = false;
  std::map<std::uint64_t, std::uint64_t> free_;  // address and size
  std::uint64_t next_range_;
};

}  // namespace alloctrace::what_if
