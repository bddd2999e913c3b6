// One run of the allocator model over a program's requests, with given settings and GPU memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator_model.h"

namespace alloctrace::what_if {

struct SimulationOptions {
  std::string settings;               // changes to the recorded settings: JSON as in a `config` event, or empty
  std::uint64_t capacity = kNoLimit;  // device bytes available to torch, or kNoLimit
  // Maximum bytes reserved by the process, or kNoLimit; unset: the recorded run's share of the device.
  std::optional<std::uint64_t> limit;
  std::uint64_t total = std::uint64_t{1} << 40;  // bytes of the device
  AddressOrder order = AddressOrder::kLowest;
  std::uint64_t seed = 0;  // of random addresses
  // Events of failed allocations that the simulation must serve, ascending; whether it attempts the others.
  std::vector<std::uint64_t> must_serve;
  bool attempts_failed = true;
  bool records_events = false;  // for tests: store the model's segment events
  double batch_factor = 1;      // of the size of requests that grow with the batch
};

// A request that must be served but does not fit: the simulation ends with it.
struct SimulationFailure {
  std::uint64_t sequence = 0, requested = 0, needed = 0;  // needed: bytes from the driver
  std::uint64_t reserved = 0, allocated = 0;              // at the failure
};

struct SimulationEvent {
  std::uint64_t sequence = 0;  // of the request that caused it
  SegmentEvent event;
};

struct SimulationResult {
  ModelTotals totals;
  std::uint64_t requests = 0;
  std::uint64_t peak_used = 0;                      // maximum bytes allocated from the driver
  std::optional<SimulationFailure> failure;         // ends the run: the program's reaction is unknown
  std::vector<std::uint64_t> served, failed_again;  // events of recorded failed allocations
  // Recorded driver only: recorded segment events; equal ones of the model at the same request.
  std::uint64_t recorded_events = 0, reproduced = 0;
  std::uint64_t blocks = 0, same_blocks = 0;      // allocations; those at the recorded address
  std::optional<std::uint64_t> first_difference;  // its request
  std::optional<std::uint64_t> several_pools;     // see AllocatorModel
  std::vector<SimulationEvent> events;
};

class Simulation {
 public:
  Simulation(SimulationOptions options, TorchRelease release);
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // Simulate the next requests. settings: JSON texts, indexed by kSettings requests.
  void simulate(const Batch& batch, const std::vector<std::string>& settings);
  bool has_ended() const { return result_.failure.has_value(); }
  SimulationResult result();  // return the result, once, after the last batch

 private:
  void inherit(const Batch& batch);
  void expect(std::span<const SegmentEvent> recorded);
  void allocate(const Request& request, std::span<const SegmentEvent> recorded);
  void attempt_failed(const Request& request);
  void record_failure(const Request& request);
  // Return the requested bytes for `batch_factor`.
  std::uint64_t size_of(const Request& request) const;
  void free(const Request& request);
  void finish_request(const Request& request, std::span<const SegmentEvent> recorded);
  Block*& block(std::uint32_t number) {
    if (number >= blocks_.size()) blocks_.resize(number + std::size_t{1} + number / 2);
    return blocks_[number];
  }

  SimulationOptions options_;
  AllocatorModel model_;
  SimulationResult result_;
  std::vector<Block*> blocks_;  // by block number; nullptr: free
};

}  // namespace alloctrace::what_if
