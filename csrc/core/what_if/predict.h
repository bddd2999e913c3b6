// Many simulations in one pass over a trace's requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../reading/trace_reader.h"
#include "simulation.h"

namespace alloctrace::what_if {

struct Prediction {
  std::vector<SimulationResult> simulations;  // in the order of the options
  std::uint64_t requests = 0;                 // to the device
  std::uint64_t inherited = 0;                // segments older than the recording
  bool inherits_expandable = false;           // some of them expandable: their ranges are unknown, nothing is simulated
};

// Simulate the requests to one device for each of `options`. release: of torch, in the recording. growing: events of
// allocations whose size is proportional to the batch, ascending. progress: gets a share from 0 to 1. Throws OpenError
// if the file was removed.
Prediction predict(const std::shared_ptr<const TraceReader>& trace, std::int32_t device_type, std::int32_t device_index,
                   TorchRelease release, const std::vector<SimulationOptions>& options,
                   const std::vector<std::uint64_t>& growing = {}, const std::function<void(double)>& progress = {});

}  // namespace alloctrace::what_if
