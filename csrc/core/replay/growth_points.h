// What each stack holds at a few points of a run that goes on: the ends of steps, or instants in a program without
// steps. At most kMost are kept, about evenly over the run, however long it becomes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "device_memory.h"

namespace alloctrace {

class GrowthPoints {
 public:
  static constexpr std::size_t kMost = 32;
  // Requested bytes by stack, in the order of the stacks' ids; of each device.
  using Bytes = std::vector<std::vector<std::pair<std::uint32_t, std::uint64_t>>>;
  struct Point {
    double at = 0;  // steps that have ended, or seconds
    Bytes bytes;
  };

  // Whether a point here would be one to keep.
  bool wants(double at) const { return points_.empty() || at >= points_.back().at + distance_; }
  void keep(double at, Bytes bytes);
  // The last of all, which is not kept when a later one comes.
  void set_latest(double at, Bytes bytes) { latest_ = {at, std::move(bytes)}; }
  // Forgets all. `distance`: between two points, as long as there is room for them.
  void begin(double distance) {
    *this = {};
    distance_ = distance;
  }
  // Those of the later half, up to the latest.
  std::vector<const Point*> later_half() const;

 private:
  std::vector<Point> points_;
  Point latest_;
  double distance_ = 1;
};

// Of all devices.
GrowthPoints::Bytes live_bytes(const std::vector<DeviceMemory>& devices);

}  // namespace alloctrace
