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

bool Driver::take(EventKind kind, std::uint64_t size) {
  // The recorded driver refused wherever this is not the segment event that comes next. (Of another size it is that of
  // a later attempt, which needed less.)
  const bool was_given = expects(kind) && expected_.front().size == size;
  if (order_ == AddressOrder::kRecorded && !was_given && !gives_anything_) return false;
  const std::uint64_t pages = paged(size);
  if (pages > capacity_ || used_ > capacity_ - pages) return false;
  used_ += pages;
  peak_used_ = std::max(peak_used_, used_);
  return true;
}

void Driver::happened(const SegmentEvent& event) {
  if (expected_.empty()) return;
  // torch gives back the memory of several pools in the order of a hash table.
  const EventKind expected = expected_.front().kind;
  if (event.kind == expected || (is_given_back(event.kind) && is_given_back(expected)))
    expected_ = expected_.subspan(1);
}

std::uint64_t Driver::allocate(std::uint64_t size) {
  if (!take(EventKind::kSegmentAlloc, size)) return 0;
  switch (order_) {
    case AddressOrder::kRecorded:
      return expects(EventKind::kSegmentAlloc) ? expected_.front().address : lowest(paged(size));
    case AddressOrder::kLowest:
      return lowest(paged(size));
    case AddressOrder::kHighest:
      return highest(paged(size));
    default:
      break;
  }
  for (;;) {
    const std::uint64_t address = kSegments + random_() % (kSegmentsEnd - kSegments) / kPage * kPage;
    const auto after = taken_.lower_bound(address);
    if (after != taken_.end() && after->first < address + paged(size)) continue;
    if (after != taken_.begin() && std::prev(after)->first + std::prev(after)->second > address) continue;
    taken_.emplace_hint(after, address, paged(size));
    return address;
  }
}

std::uint64_t Driver::lowest(std::uint64_t size) {
  const auto fits = [size](const auto& hole) { return hole.second >= size; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) return 0;  // 32 TiB are in use
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

void Driver::free(std::uint64_t address, std::uint64_t size) {
  size = paged(size);
  used_ -= size;
  if (order_ == AddressOrder::kRecorded) return;
  if (order_ == AddressOrder::kRandom) {
    taken_.erase(address);
    return;
  }
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
  used_ += paged(size);
  peak_used_ = std::max(peak_used_, used_);
  if (order_ == AddressOrder::kRandom) taken_[address] = paged(size);
}

// Units are whole pages.
bool Driver::map(std::uint64_t size) { return take(EventKind::kSegmentMap, size); }

}  // namespace alloctrace::what_if
