// Many lanes in one pass over a trace: its requests are read once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../reading/trace_reader.h"
#include "lane.h"

namespace alloctrace::what_if {

struct Prediction {
  std::vector<LaneResult> lanes;     // in the order of their options
  std::uint64_t requests = 0;        // of the device
  std::uint64_t inherited = 0;       // segments that were there when the recording began
  bool inherits_expandable = false;  // among them expandable ones, whose ranges are not known
};

// Runs the requests of one device through a lane for each of `options`. `progress` gets a share from 0 to 1. Throws
// OpenError when the file went away in the meantime. release: of the torch that the trace was recorded with.
Prediction predict(const std::shared_ptr<const TraceReader>& trace, std::int32_t device_type, std::int32_t device_index,
                   TorchRelease release, const std::vector<LaneOptions>& options,
                   const std::function<void(double)>& progress = {});

}  // namespace alloctrace::what_if
