#include "growth_points.h"

#include <algorithm>

namespace alloctrace {

void GrowthPoints::add(double at, Bytes bytes) {
  points_.push_back({at, std::move(bytes)});
  if (points_.size() < kMaxPoints) return;
  for (std::size_t index = 1; 2 * index < points_.size(); ++index) points_[index] = std::move(points_[2 * index]);
  points_.resize((points_.size() + 1) / 2);
  distance_ *= 2;
}

std::vector<const GrowthPoints::Point*> GrowthPoints::later_half() const {
  std::vector<const Point*> later;
  const double last = std::max(latest_.at, points_.empty() ? 0 : points_.back().at);
  for (const Point& point : points_) {
    if (point.at * 2 >= last) later.push_back(&point);
  }
  if (!later.empty() && latest_.at > later.back()->at) later.push_back(&latest_);
  return later;
}

GrowthPoints::Bytes live_bytes(const std::vector<DeviceMemory>& devices) {
  GrowthPoints::Bytes by_device;
  for (const DeviceMemory& device : devices) {
    auto& rows = by_device.emplace_back();
    device.for_each_allocated([&](const Piece& piece) { rows.emplace_back(piece.stack, piece.requested); });
    std::sort(rows.begin(), rows.end());
    std::size_t merged = 0;
    for (std::size_t row = 1; row < rows.size(); ++row) {
      if (rows[row].first == rows[merged].first) {
        rows[merged].second += rows[row].second;
      } else {
        rows[++merged] = rows[row];
      }
    }
    rows.resize(rows.empty() ? 0 : merged + 1);
    rows.shrink_to_fit();
  }
  return by_device;
}

}  // namespace alloctrace
