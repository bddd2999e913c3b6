// Table of the stacks of a running recording: live bytes, their change between points, and holder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "../format/definitions.h"
#include "../replay/device_memory.h"
#include "followed.h"
#include "growth_points.h"

namespace alloctrace {

class StackRows {
 public:
  explicit StackRows(const Definitions& definitions) : definitions_(&definitions) {}
  // Return the stacks of each device with the largest changes between the first and the last point, and then the
  // largest.
  std::vector<FollowedStack> list(const std::vector<DeviceMemory>& devices,
                                  const std::vector<const GrowthPoints::Point*>& points);

 private:
  void add_holders(std::vector<FollowedStack>& rows, const std::vector<DeviceMemory>& devices) const;
  std::shared_ptr<const std::vector<FollowedFrame>> frames_of(std::uint32_t stack);
  void describe_origin(FollowedStack& row) const;

  const Definitions* definitions_;
  std::map<std::uint32_t, std::shared_ptr<const std::vector<FollowedFrame>>> frames_;
};

}  // namespace alloctrace
