#include "pluggable_pair.h"

#include <atomic>

#include "tracker.h"
#include "untracked_blocks.h"

namespace {

using alloctrace::EventKind;
using alloctrace::torch_side::kCudaType;

std::atomic<bool> pair_used{false};

// Return false if something else records: the allocator in front, or the tracker of a MemPool's caching allocator.
bool pair_records() {
  using namespace alloctrace::torch_side;
  return cuda_is_traced() && !front_is_recording && !has_trackers(*native::get());
}

alloctrace::Location location_of(int device, cudaStream_t stream) {
  return {kCudaType, device, reinterpret_cast<std::uint64_t>(stream), 0, 0};
}

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cudaGetDevice(&device_before_);
    if (device_before_ != device) cudaSetDevice(device);
    is_changed_ = device_before_ != device;
  }
  ~DeviceGuard() {
    if (is_changed_) cudaSetDevice(device_before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int device_before_ = 0;
  bool is_changed_ = false;
};

}  // namespace

bool alloctrace::torch_side::pair_is_used() noexcept { return pair_used.load(std::memory_order_relaxed); }

void* alloctrace_malloc(std::size_t size, int device, cudaStream_t stream) {
  pair_used.store(true, std::memory_order_relaxed);
  const DeviceGuard guard(device);
  void* address = nullptr;
  if (cudaMalloc(&address, size) != cudaSuccess) {
    cudaGetLastError();  // clear the error, which the next, unrelated CUDA call would report
    std::size_t free_bytes = 0, total_bytes = 0;
    if (pair_records() && cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) {
      alloctrace::torch_side::record_cuda_oom(free_bytes, size, location_of(device, stream));
    }
    return nullptr;
  }
  if (address != nullptr && pair_records()) {
    alloctrace::torch_side::record_cuda_call(EventKind::kAlloc, address, size, location_of(device, stream));
  }
  return address;
}

void alloctrace_free(void* address, std::size_t size, int device, cudaStream_t stream) {
  if (address != nullptr && pair_records()) {
    alloctrace::torch_side::record_cuda_call(EventKind::kFreeCompleted, address, size, location_of(device, stream));
  }
  const DeviceGuard guard(device);
  cudaFree(address);
}
