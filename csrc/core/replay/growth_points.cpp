#include "growth_points.h"

#include <algorithm>

namespace alloctrace {

void GrowthPoints::keep(double at, Bytes bytes) {
  points_.push_back({at, std::move(bytes)});
  if (points_.size() < kMost) return;
  for (std::size_t index = 1; 2 * index < points_.size(); ++index) points_[index] = std::move(points_[2 * index]);
  points_.resize((points_.size() + 1) / 2);
  distance_ *= 2;
}

std::vector<const GrowthPoints::Point*> GrowthPoints::later_half() const {
  std::vector<const Point*> found;
  const double last = std::max(latest_.at, points_.empty() ? 0 : points_.back().at);
  for (const Point& point : points_) {
    if (point.at * 2 >= last) found.push_back(&point);
  }
  if (!found.empty() && latest_.at > found.back()->at) found.push_back(&latest_);
  return found;
}

GrowthPoints::Bytes live_bytes(const std::vector<DeviceMemory>& devices) {
  GrowthPoints::Bytes all;
  for (const DeviceMemory& device : devices) {
    auto& rows = all.emplace_back();
    device.for_each_allocated([&](const Piece& piece) { rows.emplace_back(piece.stack, piece.requested); });
    std::sort(rows.begin(), rows.end());
    std::size_t last = 0;
    for (std::size_t row = 1; row < rows.size(); ++row) {
      if (rows[row].first == rows[last].first) {
        rows[last].second += rows[row].second;
      } else {
        rows[++last] = rows[row];
      }
    }
    rows.resize(rows.empty() ? 0 : last + 1);
    rows.shrink_to_fit();
  }
  return all;
}

}  // namespace alloctrace
