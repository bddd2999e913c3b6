// Driver of the model: decides whether a segment can be allocated and at which address. A simulated driver has a
// capacity and an address order; a recorded driver repeats the answers in the trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>

#include "requests.h"

namespace alloctrace::what_if {

// Order in which segments get addresses. Among free blocks of one size torch takes the lowest address, so the order
// affects reserved bytes slightly; the real order is unknown before the program runs.
enum class AddressOrder : std::uint8_t { kLowest, kHighest, kRandom, kRecorded };

constexpr std::uint64_t kNoLimit = UINT64_MAX;

class Driver {
 public:
  Driver(std::uint64_t capacity, AddressOrder order, std::uint64_t seed);  // capacity: bytes, or kNoLimit

  // Set the recorded segment events of the next request (recorded driver only).
  void expect(std::span<const SegmentEvent> events) { expected_ = events; }
  // Consume the next expected event if its kind matches. Frees and unmaps are interchangeable.
  void consume_expected(const SegmentEvent& event);
  // Set whether a recorded driver also provides memory that it did not provide in the recording.
  void set_provides_unrecorded(bool provides) { provides_unrecorded_ = provides; }

  std::uint64_t allocate(std::uint64_t size);  // return the address of a new segment, or 0 if out of memory
  void free(std::uint64_t address, std::uint64_t size);
  void inherit(std::uint64_t address, std::uint64_t size);  // add a segment that existed before the recording
  // Return the start of an expandable range: addresses without memory.
  std::uint64_t reserve_range(std::uint64_t size) { return next_range_ -= size; }
  bool map(std::uint64_t size);
  // Return the recorded address of the current mapping, or `fallback` if none is recorded.
  std::uint64_t address_of_map(std::uint64_t fallback) const {
    return expects(EventKind::kSegmentMap) ? expected_.front().address : fallback;
  }
  void unmap(std::uint64_t size) { used_ -= size; }

  std::uint64_t used() const { return used_; }
  std::uint64_t peak_used() const { return peak_used_; }

 private:
  bool can_provide(EventKind kind, std::uint64_t size) const;
  void add_used(std::uint64_t size);
  bool expects(EventKind kind) const { return !expected_.empty() && expected_.front().kind == kind; }
  std::uint64_t place_lowest(std::uint64_t size);  // return the address, or 0 if no hole is large enough
  std::uint64_t place_highest(std::uint64_t size);
  std::uint64_t place_random(std::uint64_t size);
  std::uint64_t place(std::uint64_t size);
  // Remove addresses from the hole that contains them all. Return false if no hole does.
  bool occupy(std::uint64_t address, std::uint64_t size);

  std::uint64_t capacity_, used_ = 0, peak_used_ = 0;
  AddressOrder order_;
  std::mt19937_64 random_;
  std::span<const SegmentEvent> expected_;
  bool provides_unrecorded_ = false;
  std::map<std::uint64_t, std::uint64_t> holes_;  // size by address
  std::uint64_t next_range_;
};

}  // namespace alloctrace::what_if
