#include "simulation.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace alloctrace::what_if {
namespace {

// Count equal segment events of one request in any order: torch releases several pools in hash table order.
std::size_t count_common_events(std::span<const SegmentEvent> recorded, std::span<const SegmentEvent> simulated) {
  if (std::ranges::equal(recorded, simulated)) return simulated.size();
  std::vector<SegmentEvent> left(simulated.begin(), simulated.end()), right(recorded.begin(), recorded.end()), common;
  std::ranges::sort(left);
  std::ranges::sort(right);
  std::ranges::set_intersection(left, right, std::back_inserter(common));
  return common.size();
}

}  // namespace

Simulation::Simulation(SimulationOptions options, TorchRelease release)
    : options_(std::move(options)),
      model_(Driver(options_.capacity, options_.order, options_.seed), release, options_.total) {
  model_.limit = options_.limit.value_or(kNoLimit);
  model_.settings.read(options_.settings);
  // The recorded completion of this free comes later and must find no block.
  model_.on_completed = [this](const Block* completed) { block(completed->number) = nullptr; };
}

void Simulation::inherit(const Batch& batch) {
  for (const Inherited& row : batch.inherited) {
    if (row.is_segment) {
      model_.inherit_segment(row);
      continue;
    }
    Block* const inherited = model_.inherit_block(row);
    if (row.state == kBlockInactive) continue;
    inherited->number = row.block;
    block(row.block) = inherited;
  }
}

void Simulation::simulate(const Batch& batch, const std::vector<std::string>& settings) {
  if (!batch.inherited.empty()) inherit(batch);
  for (const Request& request : batch.requests) {
    if (has_ended()) return;
    ++result_.requests;
    model_.sequence = request.sequence;
    const std::span recorded = std::span(batch.events).subspan(request.first_event, request.event_count);
    switch (request.kind) {
      case RequestKind::kAllocate:
        allocate(request, recorded);
        break;
      case RequestKind::kFailedAllocation:
        expect(recorded);
        attempt_failed(request);
        finish_request(request, recorded);
        break;
      case RequestKind::kFree:
      case RequestKind::kFreeCompleted:
        free(request);
        break;
      case RequestKind::kFreeRequested:
        if (Block* const freed = block(request.block)) model_.await(freed);
        break;
      case RequestKind::kEmptyCache:
        expect(recorded);
        model_.empty_cache(request.pool);
        finish_request(request, recorded);
        break;
      case RequestKind::kSettings:
        model_.settings.read(settings[request.block]);
        model_.settings.read(options_.settings);
        break;
      case RequestKind::kPoolUseBegins:
        model_.begin_pool(request.pool);
        break;
      case RequestKind::kPoolUseEnds:
        model_.end_pool(request.pool);
        break;
      case RequestKind::kPoolRelease:
        model_.release_pool(request.pool);
        break;
      case RequestKind::kNoSplit:
        model_.set_never_split(request.pool);
        break;
      case RequestKind::kOwnAllocator:
        model_.set_own_allocator(request.pool);
        break;
      case RequestKind::kPoolOnOom:
        model_.set_on_oom(request.pool, request.size != 0);
        break;
      case RequestKind::kCapture:
        model_.set_capture(request.size != 0);
        break;
      case RequestKind::kFraction:
        if (!options_.limit) model_.set_fraction(std::bit_cast<double>(request.address), request.size);
        break;
    }
  }
}

void Simulation::expect(std::span<const SegmentEvent> recorded) {
  if (options_.order == AddressOrder::kRecorded) model_.driver().expect(recorded);
}

void Simulation::allocate(const Request& request, std::span<const SegmentEvent> recorded) {
  expect(recorded);
  Block* served = model_.allocate(size_of(request), request.stream, request.pool);
  if (!served && options_.order == AddressOrder::kRecorded) {
    // The model needs a segment that was not recorded: provide it, count one difference and continue.
    model_.driver().set_provides_unrecorded(true);
    served = model_.allocate(size_of(request), request.stream, request.pool);
    model_.driver().set_provides_unrecorded(false);
  }
  if (served) {
    served->number = request.block;
    block(request.block) = served;
    ++result_.blocks;
    result_.same_blocks += served->address == request.address;
    if (options_.order == AddressOrder::kRecorded && served->address != request.address && !result_.first_difference) {
      result_.first_difference = request.sequence;
    }
  } else {
    record_failure(request);
  }
  finish_request(request, recorded);
}

void Simulation::record_failure(const Request& request) {
  const std::uint64_t size = size_of(request), rounded = model_.settings.rounded(size);
  result_.failure = SimulationFailure{request.sequence, size, model_.settings.segment_size(rounded),
                                      model_.totals().reserved, model_.totals().allocated};
}

std::uint64_t Simulation::size_of(const Request& request) const {
  constexpr double kMaxBytes = 1e18;  // beyond every device; the product of a corrupt size must not overflow
  if (!request.grows || options_.batch_factor == 1) return request.size;
  return static_cast<std::uint64_t>(
      std::min(std::ceil(static_cast<double>(request.size) * options_.batch_factor), kMaxBytes));
}

// Attempt a recorded failed allocation. Free the block at once: how the program would have used it is unknown.
void Simulation::attempt_failed(const Request& request) {
  const bool must_be_served =
      std::binary_search(options_.must_serve.begin(), options_.must_serve.end(), request.sequence);
  if (!must_be_served && !options_.attempts_failed) return;
  Block* const allocated = model_.allocate(size_of(request), request.stream, request.pool);
  if (!allocated && must_be_served) return record_failure(request);
  (allocated ? result_.served : result_.failed_again).push_back(request.sequence);
  if (allocated) model_.free(allocated);
}

void Simulation::free(const Request& request) {
  Block*& freed = block(request.block);
  if (freed) model_.free(freed);
  freed = nullptr;
}

void Simulation::finish_request(const Request& request, std::span<const SegmentEvent> recorded) {
  if (options_.records_events) {
    for (const SegmentEvent& event : model_.events) result_.events.push_back({request.sequence, event});
  }
  if (options_.order == AddressOrder::kRecorded && !(recorded.empty() && model_.events.empty())) {
    const std::size_t common = count_common_events(recorded, model_.events);
    result_.recorded_events += recorded.size();
    result_.reproduced += common;
    if ((common < recorded.size() || common < model_.events.size()) && !result_.first_difference) {
      result_.first_difference = request.sequence;
    }
  }
  model_.events.clear();
}

SimulationResult Simulation::result() {
  result_.totals = model_.totals();
  result_.peak_used = model_.driver().peak_used();
  result_.several_pools = model_.several_pools;
  return std::move(result_);
}

}  // namespace alloctrace::what_if
