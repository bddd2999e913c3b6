#include "pluggable_pair.h"

#include <atomic>

#include "tracker.h"
#include "untracked_blocks.h"

namespace {

using alloctrace::EventKind;
using alloctrace::torch_side::kCudaType;

std::atomic<bool> used{false};

// False where something else records: the allocator in front of one that is made of this pair, or, where the pair makes
// the segments of a MemPool for torch's caching allocator, that one's tracker.
bool pair_records() {
  using namespace alloctrace::torch_side;
  return cuda_is_traced() && !front_records && !has_trackers(*native::get());
}

alloctrace::Location location_of(int device, cudaStream_t stream) {
  return {kCudaType, device, reinterpret_cast<std::uint64_t>(stream), 0, 0};
}

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cudaGetDevice(&before_);
    if (before_ != device) cudaSetDevice(device);
    changed_ = before_ != device;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace

bool alloctrace::torch_side::pair_is_used() noexcept { return used.load(std::memory_order_relaxed); }

void* alloctrace_malloc(std::size_t size, int device, cudaStream_t stream) {
  used.store(true, std::memory_order_relaxed);
  const DeviceGuard guard(device);
  void* address = nullptr;
  if (cudaMalloc(&address, size) != cudaSuccess) {
    cudaGetLastError();  // the null pointer reports it; left in place, it would surface at some innocent call later
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
