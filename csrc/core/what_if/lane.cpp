#include "lane.h"

#include <algorithm>
#include <bit>

namespace alloctrace::what_if {
namespace {

// Of what one request caused, whichever came first: torch gives back the memory of several pools in the order of a hash
// table.
std::size_t common_events(std::span<const SegmentEvent> recorded, std::span<const SegmentEvent> made) {
  if (std::ranges::equal(recorded, made)) return made.size();
  std::vector<SegmentEvent> ours(made.begin(), made.end()), theirs(recorded.begin(), recorded.end()), common;
  std::ranges::sort(ours);
  std::ranges::sort(theirs);
  std::ranges::set_intersection(ours, theirs, std::back_inserter(common));
  return common.size();
}

}  // namespace

Lane::Lane(LaneOptions options, TorchRelease release)
    : options_(std::move(options)),
      model_(Driver(options_.capacity, options_.order, options_.seed), release, options_.total) {
  model_.limit = options_.limit.value_or(kNoLimit);
  model_.settings.read(options_.settings);
  // A later completion of the same block has nothing left to do.
  model_.on_completed = [this](const Block* completed) { block(completed->number) = nullptr; };
}

void Lane::begin(const Batch& batch) {
  for (const Inherited& row : batch.inherited) {
    if (row.is_segment) {
      model_.inherit_segment(row);
      continue;
    }
    Block* const made = model_.inherit_block(row);
    if (row.state == kBlockInactive) continue;
    made->number = row.block;
    block(row.block) = made;
  }
}

void Lane::take(const Batch& batch, const std::vector<std::string>& settings) {
  if (!batch.inherited.empty()) begin(batch);
  for (const Request& request : batch.requests) {
    if (has_ended()) return;
    ++result_.requests;
    model_.sequence = request.sequence;
    const std::span recorded = std::span(batch.events).subspan(request.first_event, request.event_count);
    switch (request.kind) {
      case RequestKind::kAllocate:
        allocate(request, recorded);
        break;
      case RequestKind::kRefused:
        expect(recorded);
        try_refused(request);
        end_request(request, recorded);
        break;
      case RequestKind::kFree:
      case RequestKind::kComplete:
        free(request);
        break;
      case RequestKind::kGiveUp:
        if (Block* const given_up = block(request.block)) model_.await(given_up);
        break;
      case RequestKind::kEmptyCache:
        expect(recorded);
        model_.empty_cache(request.pool);
        end_request(request, recorded);
        break;
      case RequestKind::kSettings:
        model_.settings.read(settings[request.block]);
        model_.settings.read(options_.settings);
        break;
      case RequestKind::kPoolBegins:
        model_.begin_pool(request.pool);
        break;
      case RequestKind::kPoolEnds:
        model_.end_pool(request.pool);
        break;
      case RequestKind::kPoolRelease:
        model_.release_pool(request.pool);
        break;
      case RequestKind::kNoSplit:
        model_.never_split(request.pool);
        break;
      case RequestKind::kOwnMemory:
        model_.set_own_memory(request.pool);
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

void Lane::expect(std::span<const SegmentEvent> recorded) {
  if (options_.order == AddressOrder::kRecorded) model_.driver().expect(recorded);
}

void Lane::allocate(const Request& request, std::span<const SegmentEvent> recorded) {
  expect(recorded);
  Block* made = model_.allocate(request.size, request.stream, request.pool);
  if (!made && options_.order == AddressOrder::kRecorded) {
    // The recorded driver gave what the model does not ask for: one difference, and on from there.
    model_.driver().give_anything(true);
    made = model_.allocate(request.size, request.stream, request.pool);
    model_.driver().give_anything(false);
  }
  if (made) {
    made->number = request.block;
    block(request.block) = made;
    ++result_.blocks;
    result_.same_blocks += made->address == request.address;
    if (options_.order == AddressOrder::kRecorded && made->address != request.address && !result_.first_difference) {
      result_.first_difference = request.sequence;
    }
  } else {
    refuse(request);
  }
  end_request(request, recorded);
}

void Lane::refuse(const Request& request) {
  const std::uint64_t rounded = model_.settings.rounded(request.size);
  result_.refusal = LaneRefusal{request.sequence, request.size, model_.settings.segment_size(rounded),
                                model_.totals().reserved, model_.totals().allocated};
}

// What the program would have done with the memory is not known: it gives it back at once.
void Lane::try_refused(const Request& request) {
  const bool must_be_served =
      std::binary_search(options_.must_serve.begin(), options_.must_serve.end(), request.sequence);
  if (!must_be_served && !options_.tries_refused) return;
  Block* const made = model_.allocate(request.size, request.stream, request.pool);
  if (!made && must_be_served) return refuse(request);
  (made ? result_.served : result_.refused_again).push_back(request.sequence);
  if (made) model_.free(made);
}

void Lane::free(const Request& request) {
  Block*& freed = block(request.block);
  if (freed) model_.free(freed);
  freed = nullptr;
}

void Lane::end_request(const Request& request, std::span<const SegmentEvent> recorded) {
  if (options_.keeps_events) {
    for (const SegmentEvent& event : model_.events) result_.events.push_back({request.sequence, event});
  }
  if (options_.order == AddressOrder::kRecorded && !(recorded.empty() && model_.events.empty())) {
    const std::size_t same = common_events(recorded, model_.events);
    result_.recorded_events += recorded.size();
    result_.reproduced += same;
    if ((same < recorded.size() || same < model_.events.size()) && !result_.first_difference) {
      result_.first_difference = request.sequence;
    }
  }
  model_.events.clear();
}

LaneResult Lane::result() {
  result_.totals = model_.totals();
  result_.peak_used = model_.driver().peak_used();
  result_.several_pools = model_.several_pools;
  return std::move(result_);
}

}  // namespace alloctrace::what_if
