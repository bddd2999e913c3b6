#include "predict.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <system_error>
#include <thread>

namespace alloctrace::what_if {
namespace {

constexpr std::size_t kBatch = std::size_t{1} << 18;  // requests: 12 MiB
constexpr unsigned kMostThreads = 8;

// Each lane takes the batch, on as many threads as the machine has.
void take_all(std::deque<Lane>& lanes, const Batch& batch, const std::vector<std::string>& settings) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t lane; (lane = next.fetch_add(1)) < lanes.size();) lanes[lane].take(batch, settings);
  };
  const unsigned wanted =
      std::min({std::max(std::thread::hardware_concurrency(), 1u), kMostThreads, static_cast<unsigned>(lanes.size())});
  std::vector<std::future<void>> helpers;
  if (batch.requests.size() >= kBatch / 16) {  // else starting them takes longer than they save
    try {
      for (unsigned thread = 1; thread < wanted; ++thread) {
        helpers.push_back(std::async(std::launch::async, work));
      }
    } catch (const std::system_error&) {  // no more threads to be had: those that there are do it
    }
  }
  work();
  for (std::future<void>& helper : helpers) helper.get();
}

}  // namespace

Prediction predict(const std::shared_ptr<const TraceReader>& trace, std::int32_t device_type, std::int32_t device_index,
                   TorchRelease release, const std::vector<LaneOptions>& options,
                   const std::function<void(double)>& progress) {
  RequestReader reader(trace, device_type, device_index);
  std::deque<Lane> lanes;
  for (const LaneOptions& one : options) lanes.emplace_back(one, release);
  Prediction prediction;
  Batch batch;
  const std::uint64_t all = std::max<std::uint64_t>(trace->integrity().events, 1);
  while (reader.next(batch, kBatch)) {
    prediction.requests += batch.requests.size();
    for (const Inherited& row : batch.inherited) {
      prediction.inherited += row.is_segment;
      prediction.inherits_expandable |= row.is_expandable;
    }
    if (prediction.inherits_expandable) break;
    take_all(lanes, batch, reader.settings());
    if (progress) progress(std::min(1.0, static_cast<double>(reader.events_read()) / static_cast<double>(all)));
  }
  for (Lane& lane : lanes) prediction.lanes.push_back(lane.result());
  return prediction;
}

}  // namespace alloctrace::what_if
