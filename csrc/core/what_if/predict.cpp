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
constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 20;  // of all lanes of a pass: a block takes about 400 bytes

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
  Prediction prediction;
  const double all = static_cast<double>(std::max<std::uint64_t>(trace->integrity().events, 1));
  const double wanted = static_cast<double>(std::max<std::size_t>(options.size(), 1));
  do {
    const std::size_t done = prediction.lanes.size();
    RequestReader reader(trace, device_type, device_index);
    std::deque<Lane> lanes;
    for (std::size_t lane = done; lane < options.size(); ++lane) lanes.emplace_back(options[lane], release);
    prediction.requests = prediction.inherited = 0;
    Batch batch;
    while (reader.next(batch, kBatch)) {
      prediction.requests += batch.requests.size();
      for (const Inherited& row : batch.inherited) {
        prediction.inherited += row.is_segment;
        prediction.inherits_expandable |= row.is_expandable;
      }
      if (prediction.inherits_expandable) break;
      // The last ones wait for a pass of their own.
      while (lanes.size() > 1 && lanes.size() * reader.blocks() > kMostBlocks) lanes.pop_back();
      take_all(lanes, batch, reader.settings());
      const double share = std::min(1.0, static_cast<double>(reader.events_read()) / all);
      if (progress) progress((static_cast<double>(done) + static_cast<double>(lanes.size()) * share) / wanted);
    }
    for (Lane& lane : lanes) prediction.lanes.push_back(lane.result());
  } while (prediction.lanes.size() < options.size());
  return prediction;
}

}  // namespace alloctrace::what_if
