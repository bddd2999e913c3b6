#include "forwarded_calls.h"

#include <utility>

#include "../../core/format/definitions.h"
#include "../record_event.h"

namespace alloctrace::torch_side {
namespace {

void record_pool_switch(EventKind kind, bool begins, c10::DeviceIndex device, c10::MempoolId_t pool) noexcept {
  if (!cuda_is_traced()) return;
  Event event{};
  event.kind = kind;
  PoolSwitchFields(event).begins = begins;
  record_cuda_call(event, {kCudaType, device, 0, pool.first, pool.second});
}

}  // namespace

RecordedPoolRestore::RecordedPoolRestore(c10::DeviceIndex device) noexcept : device_(device) {
  record_pool_switch(EventKind::kPoolRestore, true, device, {0, 0});
}
RecordedPoolRestore::~RecordedPoolRestore() { record_pool_switch(EventKind::kPoolRestore, false, device_, {0, 0}); }

RecordedPoolRelease::RecordedPoolRelease(native::CUDAAllocator& upstream, c10::DeviceIndex device,
                                         c10::MempoolId_t pool) noexcept
    : device_(device), pool_(std::move(pool)) {
  if (!cuda_is_traced() || !has_trackers(upstream)) return;
  try {
    uses_before_ = upstream.getPoolUseCount(device_, pool_);
  } catch (...) {  // unknown pool: releasePool() will report it
  }
}
RecordedPoolRelease::~RecordedPoolRelease() {
  if (uses_before_ > 0) record_pool_uses(device_, pool_, uses_before_ - 1);
}

void record_pool_uses(c10::DeviceIndex device, c10::MempoolId_t pool, int uses_left) noexcept {
  if (!cuda_is_traced()) return;
  Event event{};
  event.kind = EventKind::kPoolRelease;
  PoolReleaseFields(event).uses_left = static_cast<std::uint64_t>(uses_left);
  record_cuda_call(event, {kCudaType, device, 0, pool.first, pool.second});
}

void record_pool_allocator(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept {
  if (cuda_is_traced())
    record_cuda_call(EventKind::kPoolAllocator, nullptr, 0, {kCudaType, device, 0, pool.first, pool.second});
}

void record_pool_use(c10::DeviceIndex device, c10::MempoolId_t pool, bool begins) noexcept {
  record_pool_switch(EventKind::kPoolUse, begins, device, pool);
}

void record_pool_on_oom(c10::DeviceIndex device, c10::MempoolId_t pool, bool begins) noexcept {
  record_pool_switch(EventKind::kPoolOnOom, begins, device, pool);
}

void record_capture(c10::DeviceIndex device, bool begins) noexcept {
  record_pool_switch(EventKind::kCapture, begins, device, {0, 0});
}

void record_empty_cache(c10::MempoolId_t pool) noexcept {
  if (cuda_is_traced())
    record_cuda_call(EventKind::kEmptyCache, nullptr, 0, {kCudaType, 0, 0, pool.first, pool.second});
}

void record_no_split(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept {
  if (cuda_is_traced())
    record_cuda_call(EventKind::kNoSplit, nullptr, 0, {kCudaType, device, 0, pool.first, pool.second});
}

void record_stream_use(const void* address, c10::DeviceIndex device, const void* stream) noexcept {
  if (cuda_is_traced() && address != nullptr) {
    record_cuda_call(EventKind::kStreamUse, address, 0,
                     {kCudaType, device, reinterpret_cast<std::uint64_t>(stream), 0, 0});
  }
}

}  // namespace alloctrace::torch_side
