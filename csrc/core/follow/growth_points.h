// Live bytes of each stack at points of a running program: at ends of steps, or at times if the program has no steps.
// At most kMaxPoints points, evenly spread over the run: their distance doubles as the run grows.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "../replay/device_memory.h"

namespace alloctrace {

class GrowthPoints {
 public:
  static constexpr std::size_t kMaxPoints = 32;
  // By device: pairs of stack id and requested bytes, ordered by stack id.
  using Bytes = std::vector<std::vector<std::pair<std::uint32_t, std::uint64_t>>>;
  struct Point {
    double at = 0;  // completed steps, or seconds
    Bytes bytes;
  };

  bool is_due(double at) const { return points_.empty() || at >= points_.back().at + distance_; }
  void add(double at, Bytes bytes);
  // Replace the latest point, which is kept apart from the evenly spread ones.
  void set_latest(double at, Bytes bytes) { latest_ = {at, std::move(bytes)}; }
  // Delete all points. `distance`: the initial minimum distance of two points.
  void reset(double distance) {
    *this = {};
    distance_ = distance;
  }
  // Return the points of the second half of the run, including the latest.
  std::vector<const Point*> later_half() const;

 private:
  std::vector<Point> points_;
  Point latest_;
  double distance_ = 1;
};

// Return the requested bytes of live blocks by device and stack.
GrowthPoints::Bytes live_bytes(const std::vector<DeviceMemory>& devices);

}  // namespace alloctrace
