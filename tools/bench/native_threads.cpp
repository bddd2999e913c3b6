// Allocations by threads without Python, for tools/bench/record.py and the tests: called through ctypes.
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace {

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

// Allocates and frees `blocks` blocks on each of `threads` new threads and joins the threads. Called with the GIL held
// (ctypes.PyDLL), it hangs if an allocation needs the GIL. Returns the longest alloc+free pair in ns; sets `total_ns`
// to one thread's time for all pairs.
extern "C" double allocate_in_threads(int threads, int blocks, double* total_ns) {
  std::vector<std::thread> running;
  std::vector<double> longest(static_cast<std::size_t>(threads)), total(longest);
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([=, &longest, &total] {
      c10::Allocator* allocator = c10::GetAllocator(c10::DeviceType::CPU);
      const double begin = now();
      double before = begin, worst = 0;
      for (int block = 0; block < blocks; ++block) {
        allocator->allocate(4000);
        const double after = now();
        worst = std::max(worst, after - before);
        before = after;
      }
      longest[static_cast<std::size_t>(i)] = worst * 1e9;
      total[static_cast<std::size_t>(i)] = (before - begin) * 1e9;
    });
  }
  for (std::thread& thread : running) thread.join();
  *total_ns = *std::max_element(total.begin(), total.end());
  return *std::max_element(longest.begin(), longest.end());
}

// The same on CUDA devices, thread i on device i % devices; each has a segment before the time counts.
// Sets `total_ns` to the time from the common start to the end of the last thread.
extern "C" void allocate_on_devices(int threads, int devices, int blocks, double* total_ns) {
  std::vector<std::thread> running;
  std::vector<double> ended(static_cast<std::size_t>(threads));
  std::atomic<int> ready{0};
  std::atomic<bool> begun{false};
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([=, &ended, &ready, &begun] {
      c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)
          ->setDevice({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(i % devices)});
      c10::Allocator* allocator = c10::GetAllocator(c10::DeviceType::CUDA);
      for (int block = 0; block < 100; ++block) allocator->allocate(4000);
      ++ready;
      while (!begun) std::this_thread::yield();
      for (int block = 0; block < blocks; ++block) allocator->allocate(4000);
      ended[static_cast<std::size_t>(i)] = now();
    });
  }
  while (ready != threads) std::this_thread::yield();
  const double begin = now();
  begun = true;
  for (std::thread& thread : running) thread.join();
  *total_ns = (*std::max_element(ended.begin(), ended.end()) - begin) * 1e9;
}
