// One run of the model over a program's requests, under settings and on a card.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator_model.h"

namespace alloctrace::what_if {

struct LaneOptions {
  // What of the recorded settings is different: JSON as in a `config` event, or empty.
  std::string settings;
  // Bytes that torch can have of the device, or kNoLimit.
  std::uint64_t capacity = kNoLimit;
  // Bytes that the process may reserve, or kNoLimit; without it the share of the device that the recorded run had.
  std::optional<std::uint64_t> limit;
  std::uint64_t total = std::uint64_t{1} << 40;  // bytes of the device
  AddressOrder order = AddressOrder::kLowest;
  std::uint64_t seed = 0;  // of random addresses
  // Of the requests that the recorded run was refused: those that have to be served, by event, ascending; and whether
  // the others are tried.
  std::vector<std::uint64_t> must_serve;
  bool tries_refused = true;
  bool keeps_events = false;  // for tests: what the model did, segment by segment
};

// A request that has to be served, and the model cannot.
struct LaneRefusal {
  std::uint64_t sequence = 0, requested = 0, needed = 0;  // needed: bytes from the driver
  std::uint64_t reserved = 0, allocated = 0;              // at that time
};

struct LaneEvent {
  std::uint64_t sequence = 0;  // of the request that caused it
  SegmentEvent event;
};

struct LaneResult {
  ModelTotals totals;
  std::uint64_t requests = 0;
  std::uint64_t peak_used = 0;         // bytes that the driver gave at most
  std::optional<LaneRefusal> refusal;  // the run ends here: what the program would have done is not known
  // Of the requests that the recorded run was refused, by their events.
  std::vector<std::uint64_t> served, refused_again;
  // Of a recorded driver: its segment events, and those that the model made too, of the same kind, address and size at
  // the same request.
  std::uint64_t recorded_events = 0, reproduced = 0;
  std::uint64_t blocks = 0, same_blocks = 0;      // allocations, and those that got the recorded address
  std::optional<std::uint64_t> first_difference;  // the request
  std::optional<std::uint64_t> several_pools;     // see AllocatorModel
  std::vector<LaneEvent> events;
};

class Lane {
 public:
  Lane(LaneOptions options, TorchRelease release);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Takes the next requests. settings: the texts that they name.
  void take(const Batch& batch, const std::vector<std::string>& settings);
  bool has_ended() const { return result_.refusal.has_value(); }
  // Once all are taken.
  LaneResult result();

 private:
  void begin(const Batch& batch);
  void expect(std::span<const SegmentEvent> recorded);
  void allocate(const Request& request, std::span<const SegmentEvent> recorded);
  void try_refused(const Request& request);
  void refuse(const Request& request);
  void free(const Request& request);
  void end_request(const Request& request, std::span<const SegmentEvent> recorded);
  Block*& block(std::uint32_t number) {
    if (number >= blocks_.size()) blocks_.resize(number + std::size_t{1} + number / 2);
    return blocks_[number];
  }

  LaneOptions options_;
  AllocatorModel model_;
  LaneResult result_;
  std::vector<Block*> blocks_;  // by the program's number; nullptr: free
};

}  // namespace alloctrace::what_if
