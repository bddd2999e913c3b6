#include "driver.h"

#include <algorithm>

#include "../replay/allocator_rules.h"

namespace alloctrace::what_if {
namespace {

constexpr std::uint64_t kPage = kSmallSegment;  // the driver gives memory out in units of it
// Addresses of segments, and from the end downwards those of ranges; in between those that a recording lacks.
constexpr std::uint64_t kSegments = std::uint64_t{1} << 46, kSegmentsEnd = kSegments + (std::uint64_t{1} << 45);
constexpr std::uint64_t kRangesEnd = std::uint64_t{1} << 62;

constexpr std::uint64_t paged(std::uint64_t size) { return (size + kPage - 1) / kPage * kPage; }

}  // namespace

Driver::Driver(std::uint64_t capacity, AddressOrder order, std::uint64_t seed)
    : capacity_(capacity), order_(order), random_(seed), next_range_(kRangesEnd) {
  free_[kSegments] = kSegmentsEnd - kSegments;
}

bool Driver::gives(EventKind kind, std::uint64_t size) const {
  // The recorded driver refused wherever this is not the segment event that comes next. (Of another size it is that of
  // a later attempt, which needed less.)
  const bool was_given = expects(kind) && expected_.front().size == size;
  if (order_ == AddressOrder::kRecorded && !was_given && !gives_anything_) return false;
  const std::uint64_t pages = paged(size);
  return pages <= capacity_ && used_ <= capacity_ - pages;
}

void Driver::use(std::uint64_t size) {
  used_ += paged(size);
  peak_used_ = std::max(peak_used_, used_);
}

void Driver::happened(const SegmentEvent& event) {
  if (expected_.empty()) return;
  // torch gives back the memory of several pools in the order of a hash table.
  const EventKind expected = expected_.front().kind;
  if (event.kind == expected || (is_given_back(event.kind) && is_given_back(expected)))
    expected_ = expected_.subspan(1);
}

std::uint64_t Driver::allocate(std::uint64_t size) {
  if (!gives(EventKind::kSegmentAlloc, size)) return 0;
  const std::uint64_t address = place(paged(size));
  if (address != 0) use(size);  // else 32 TiB are in use
  return address;
}

std::uint64_t Driver::place(std::uint64_t size) {
  switch (order_) {
    case AddressOrder::kRecorded:
      return expects(EventKind::kSegmentAlloc) ? expected_.front().address : lowest(size);
    case AddressOrder::kLowest:
      return lowest(size);
    case AddressOrder::kHighest:
      return highest(size);
    case AddressOrder::kRandom:
      return random(size);
  }
  return 0;
}

std::uint64_t Driver::lowest(std::uint64_t size) {
  const auto fits = [size](const auto& hole) { return hole.second >= size; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) return 0;
  const auto [address, bytes] = *found;
  free_.erase(found);
  if (bytes > size) free_[address + size] = bytes - size;
  return address;
}

std::uint64_t Driver::highest(std::uint64_t size) {
  const auto fits = [size](const auto& hole) { return hole.second >= size; };
  const auto found = std::find_if(free_.rbegin(), free_.rend(), fits);
  if (found == free_.rend()) return 0;
  found->second -= size;
  const std::uint64_t address = found->first + found->second;
  if (found->second == 0) free_.erase(found->first);
  return address;
}

std::uint64_t Driver::random(std::uint64_t size) {
  // Where nearly all is taken, chance may never meet what is left.
  constexpr int kTries = 100;
  for (int tries = 0; tries < kTries; ++tries) {
    const std::uint64_t address = kSegments + random_() % (kSegmentsEnd - kSegments) / kPage * kPage;
    if (occupy(address, size)) return address;
  }
  return lowest(size);
}

bool Driver::occupy(std::uint64_t address, std::uint64_t size) {
  auto hole = free_.upper_bound(address);
  if (hole == free_.begin()) return false;
  --hole;
  const std::uint64_t end = hole->first + hole->second;
  if (end < address || end - address < size) return false;
  hole->second = address - hole->first;
  if (hole->second == 0) free_.erase(hole);
  if (end != address + size) free_[address + size] = end - address - size;
  return true;
}

void Driver::free(std::uint64_t address, std::uint64_t size) {
  size = paged(size);
  used_ -= size;
  if (order_ == AddressOrder::kRecorded) return;
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == address) {
      before->second += size;
      return;
    }
  }
  free_.emplace_hint(next, address, size);
}

void Driver::inherit(std::uint64_t address, std::uint64_t size) {
  use(size);
  occupy(address, paged(size));
}

// Units are whole pages.
bool Driver::map(std::uint64_t size) {
  if (!gives(EventKind::kSegmentMap, size)) return false;
  use(size);
  return true;
}

}  // namespace alloctrace::what_if
