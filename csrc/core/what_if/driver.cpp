#include "driver.h"

#include <algorithm>

#include "../replay/allocator_rules.h"

namespace alloctrace::what_if {
namespace {

constexpr std::uint64_t kPage = 2 * kMiB;  // allocation granularity of the driver
// Address space: segments between the first two constants, expandable ranges downwards from kRangesEnd.
constexpr std::uint64_t kSegments = std::uint64_t{1} << 46, kSegmentsEnd = kSegments + (std::uint64_t{1} << 45);
constexpr std::uint64_t kRangesEnd = std::uint64_t{1} << 62;

constexpr std::uint64_t to_pages(std::uint64_t size) { return (size + kPage - 1) / kPage * kPage; }

}  // namespace

Driver::Driver(std::uint64_t capacity, AddressOrder order, std::uint64_t seed)
    : capacity_(capacity), order_(order), random_(seed), next_range_(kRangesEnd) {
  holes_[kSegments] = kSegmentsEnd - kSegments;
}

bool Driver::can_provide(EventKind kind, std::uint64_t size) const {
  // A recorded driver fails unless this event was recorded next: another size belongs to a later, smaller attempt.
  const bool was_recorded = expects(kind) && expected_.front().size == size;
  if (order_ == AddressOrder::kRecorded && !was_recorded && !provides_unrecorded_) return false;
  const std::uint64_t pages = to_pages(size);
  return pages <= capacity_ && used_ <= capacity_ - pages;
}

void Driver::add_used(std::uint64_t size) {
  used_ += to_pages(size);
  peak_used_ = std::max(peak_used_, used_);
}

void Driver::consume_expected(const SegmentEvent& event) {
  if (expected_.empty()) return;
  // torch releases several pools in hash table order.
  const EventKind expected = expected_.front().kind;
  if (event.kind == expected || (is_release(event.kind) && is_release(expected))) expected_ = expected_.subspan(1);
}

std::uint64_t Driver::allocate(std::uint64_t size) {
  if (!can_provide(EventKind::kSegmentAlloc, size)) return 0;
  const std::uint64_t address = place(to_pages(size));
  if (address != 0) add_used(size);  // 0: all 32 TiB of addresses are in use
  return address;
}

std::uint64_t Driver::place(std::uint64_t size) {
  switch (order_) {
    case AddressOrder::kRecorded:
      return expects(EventKind::kSegmentAlloc) ? expected_.front().address : place_lowest(size);
    case AddressOrder::kLowest:
      return place_lowest(size);
    case AddressOrder::kHighest:
      return place_highest(size);
    case AddressOrder::kRandom:
      return place_random(size);
  }
  return 0;
}

std::uint64_t Driver::place_lowest(std::uint64_t size) {
  const auto fits = [size](const auto& hole) { return hole.second >= size; };
  const auto hole = std::find_if(holes_.begin(), holes_.end(), fits);
  if (hole == holes_.end()) return 0;
  const auto [address, bytes] = *hole;
  holes_.erase(hole);
  if (bytes > size) holes_[address + size] = bytes - size;
  return address;
}

std::uint64_t Driver::place_highest(std::uint64_t size) {
  const auto fits = [size](const auto& hole) { return hole.second >= size; };
  const auto hole = std::find_if(holes_.rbegin(), holes_.rend(), fits);
  if (hole == holes_.rend()) return 0;
  hole->second -= size;
  const std::uint64_t address = hole->first + hole->second;
  if (hole->second == 0) holes_.erase(hole->first);
  return address;
}

std::uint64_t Driver::place_random(std::uint64_t size) {
  // If nearly all addresses are in use, random ones might never hit a hole.
  constexpr int kMaxTries = 100;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    const std::uint64_t address = kSegments + random_() % (kSegmentsEnd - kSegments) / kPage * kPage;
    if (occupy(address, size)) return address;
  }
  return place_lowest(size);
}

bool Driver::occupy(std::uint64_t address, std::uint64_t size) {
  auto hole = holes_.upper_bound(address);
  if (hole == holes_.begin()) return false;
  --hole;
  const std::uint64_t end = hole->first + hole->second;
  if (end < address || end - address < size) return false;
  hole->second = address - hole->first;
  if (hole->second == 0) holes_.erase(hole);
  if (end != address + size) holes_[address + size] = end - address - size;
  return true;
}

void Driver::free(std::uint64_t address, std::uint64_t size) {
  size = to_pages(size);
  used_ -= size;
  if (order_ == AddressOrder::kRecorded) return;
  auto next = holes_.lower_bound(address);
  if (next != holes_.end() && next->first == address + size) {
    size += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == address) {
      before->second += size;
      return;
    }
  }
  holes_.emplace_hint(next, address, size);
}

void Driver::inherit(std::uint64_t address, std::uint64_t size) {
  add_used(size);
  occupy(address, to_pages(size));
}

bool Driver::map(std::uint64_t size) {
  if (!can_provide(EventKind::kSegmentMap, size)) return false;
  add_used(size);
  return true;
}

}  // namespace alloctrace::what_if
