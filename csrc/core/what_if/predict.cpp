#include "predict.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <system_error>
#include <thread>

namespace alloctrace::what_if {
namespace {

constexpr std::size_t kBatchRequests = std::size_t{1} << 18;  // 12 MiB
constexpr unsigned kMaxThreads = 8;
constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 20;  // in all simulations of a pass, about 400 bytes each

// Run the batch through each simulation, on up to kMaxThreads threads.
void simulate_batch(std::deque<Simulation>& simulations, const Batch& batch, const std::vector<std::string>& settings) {
  std::atomic<std::size_t> next{0};
  const auto simulate_remaining = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < simulations.size();) simulations[i].simulate(batch, settings);
  };
  const unsigned thread_count = std::min(
      {std::max(std::thread::hardware_concurrency(), 1u), kMaxThreads, static_cast<unsigned>(simulations.size())});
  std::vector<std::future<void>> workers;
  if (batch.requests.size() >= kBatchRequests / 16) {  // a smaller batch costs less than starting threads
    try {
      for (unsigned thread = 1; thread < thread_count; ++thread) {
        workers.push_back(std::async(std::launch::async, simulate_remaining));
      }
    } catch (const std::system_error&) {  // continue with the threads that exist
    }
  }
  simulate_remaining();
  for (std::future<void>& worker : workers) worker.get();
}

}  // namespace

Prediction predict(const std::shared_ptr<const TraceReader>& trace, std::int32_t device_type, std::int32_t device_index,
                   TorchRelease release, const std::vector<SimulationOptions>& options,
                   const std::vector<std::uint64_t>& growing, const std::function<void(double)>& progress) {
  Prediction prediction;
  const double events = static_cast<double>(std::max<std::uint64_t>(trace->integrity().events, 1));
  const double total = static_cast<double>(std::max<std::size_t>(options.size(), 1));
  do {
    const std::size_t first = prediction.simulations.size();
    RequestReader reader(trace, device_type, device_index, growing);
    std::deque<Simulation> simulations;
    for (std::size_t i = first; i < options.size(); ++i) simulations.emplace_back(options[i], release);
    prediction.requests = prediction.inherited = 0;
    Batch batch;
    while (reader.next(batch, kBatchRequests)) {
      prediction.requests += batch.requests.size();
      for (const Inherited& row : batch.inherited) {
        prediction.inherited += row.is_segment;
        prediction.inherits_expandable |= row.is_expandable;
      }
      if (prediction.inherits_expandable) break;
      // Leave the last simulations to another pass over the trace.
      while (simulations.size() > 1 && simulations.size() * reader.max_blocks() > kMaxBlocks) simulations.pop_back();
      simulate_batch(simulations, batch, reader.settings());
      const double share = std::min(1.0, static_cast<double>(reader.events_read()) / events);
      if (progress) progress((static_cast<double>(first) + static_cast<double>(simulations.size()) * share) / total);
    }
    for (Simulation& simulation : simulations) prediction.simulations.push_back(simulation.result());
  } while (prediction.simulations.size() < options.size());
  return prediction;
}

}  // namespace alloctrace::what_if
