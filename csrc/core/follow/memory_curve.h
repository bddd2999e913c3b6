// Allocated and reserved bytes of each device over the time of a running recording: the maximum of each interval. When
// there would be more than kMaxIntervals, intervals are merged in pairs.
#pragma once

#include <cstdint>
#include <vector>

#include "../replay/device_memory.h"

namespace alloctrace {

class MemoryCurve {
 public:
  // Set the time at which the first interval begins, in ns.
  void begin(std::int64_t time_ns) { begin_ns_ = time_ns; }
  void add_device();
  // Continue the curves of all devices at their present levels up to an event. Must be called before the event is
  // applied: memory that is freed after a pause was live during the pause.
  void extend(std::int64_t time_ns, const std::vector<DeviceMemory>& devices);
  // Add the level of a device after an event, which extend() has been called for.
  void add_level(std::size_t device, std::int64_t time_ns, const MemoryTotals& totals);

  std::int64_t interval_ns() const { return interval_ns_; }
  // Return the bytes by interval.
  const std::vector<std::uint64_t>& allocated(std::size_t device) const { return curves_[device].allocated; }
  const std::vector<std::uint64_t>& reserved(std::size_t device) const { return curves_[device].reserved; }

 private:
  static constexpr std::size_t kMaxIntervals = 240;
  struct Curve {
    std::vector<std::uint64_t> allocated, reserved;
  };

  std::uint64_t interval_at(std::int64_t time_ns) const;

  std::vector<Curve> curves_;  // by device
  std::int64_t begin_ns_ = 0, interval_ns_ = 50'000'000;
  std::size_t intervals_ = 0;
};

}  // namespace alloctrace
