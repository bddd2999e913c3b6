#include "memory_curve.h"

#include <algorithm>

namespace alloctrace {
namespace {

void halve(std::vector<std::uint64_t>& curve) {
  for (std::size_t index = 0; index < curve.size(); ++index) {
    curve[index / 2] = index % 2 == 0 ? curve[index] : std::max(curve[index / 2], curve[index]);
  }
  curve.resize((curve.size() + 1) / 2);
}

}  // namespace

void MemoryCurve::add_device() {
  Curve& curve = curves_.emplace_back();
  curve.allocated.resize(intervals_);
  curve.reserved.resize(intervals_);
}

// Return the interval of a time; one that does not exist yet if the time is later or, in a corrupt trace, impossible.
std::uint64_t MemoryCurve::interval_at(std::int64_t time_ns) const {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(time_ns - begin_ns_, 0) / interval_ns_);
}

void MemoryCurve::extend(std::int64_t time_ns, const std::vector<DeviceMemory>& devices) {
  constexpr std::int64_t kMaxNs = std::int64_t{1} << 60;
  if (time_ns - begin_ns_ > kMaxNs) return;  // a corrupt time
  while (interval_at(time_ns) >= kMaxIntervals) {
    for (Curve& curve : curves_) {
      halve(curve.allocated);
      halve(curve.reserved);
    }
    intervals_ = (intervals_ + 1) / 2;
    interval_ns_ *= 2;
  }
  if (interval_at(time_ns) < intervals_) return;
  intervals_ = interval_at(time_ns) + 1;
  for (std::size_t device = 0; device < curves_.size(); ++device) {
    const MemoryTotals& totals = devices[device].totals();
    curves_[device].allocated.resize(intervals_, totals.allocated);
    curves_[device].reserved.resize(intervals_, totals.reserved);
  }
}

void MemoryCurve::add_level(std::size_t device, std::int64_t time_ns, const MemoryTotals& totals) {
  const std::uint64_t interval = interval_at(time_ns);
  if (interval >= intervals_) return;  // a corrupt time
  std::uint64_t& allocated = curves_[device].allocated[interval];
  std::uint64_t& reserved = curves_[device].reserved[interval];
  allocated = std::max(allocated, totals.allocated);
  reserved = std::max(reserved, totals.reserved);
}

}  // namespace alloctrace
