// Recording in the allocator in front: durations of allocations, and calls for which torch makes no trace entry.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>

#include "../../core/base/clock.h"
#include "library_blocks.h"
#include "tracker.h"

namespace alloctrace::torch_side {

// Scope of an upstream call that allocates. A latency event follows its event (alloc, or oom if it throws) if the time
// up to that event was over 10 microseconds or segments were created.
class TimedCall {
 public:
  // caller: the code that called the allocator, if known.
  explicit TimedCall(const void* caller = nullptr) noexcept {
    thread_calls.begin = read_counter();
    thread_calls.called_by_torch_cuda = is_in_torch_cuda(caller);
  }
  ~TimedCall() {
    thread_calls.begin = 0;
    thread_calls.called_by_torch_cuda = false;
  }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;
};

// Scope of an upstream call that restores an earlier state of a pool.
class RecordedPoolRestore {
 public:
  explicit RecordedPoolRestore(c10::DeviceIndex device) noexcept;
  ~RecordedPoolRestore();
  RecordedPoolRestore(const RecordedPoolRestore&) = delete;
  RecordedPoolRestore& operator=(const RecordedPoolRestore&) = delete;

 private:
  const c10::DeviceIndex device_;
};

// Scope of an upstream call that ends one use of a pool.
class RecordedPoolRelease {
 public:
  RecordedPoolRelease(native::CUDAAllocator& upstream, c10::DeviceIndex device, c10::MempoolId_t pool) noexcept;
  ~RecordedPoolRelease();
  RecordedPoolRelease(const RecordedPoolRelease&) = delete;
  RecordedPoolRelease& operator=(const RecordedPoolRelease&) = delete;

 private:
  const c10::DeviceIndex device_;
  const c10::MempoolId_t pool_;
  int uses_before_ = 0;  // 0: not recorded
};

// Record the remaining number of uses of a pool; at 0 its segments may be freed.
void record_pool_uses(c10::DeviceIndex device, c10::MempoolId_t pool, int uses_left) noexcept;
void record_pool_allocator(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept;
void record_pool_use(c10::DeviceIndex device, c10::MempoolId_t pool, bool begins) noexcept;
void record_pool_on_oom(c10::DeviceIndex device, c10::MempoolId_t pool, bool begins) noexcept;
void record_capture(c10::DeviceIndex device, bool begins) noexcept;
void record_empty_cache(c10::MempoolId_t pool) noexcept;
void record_no_split(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept;
// Record that torch may not reuse the block before the work now queued on the stream is done.
void record_stream_use(const void* address, c10::DeviceIndex device, const void* stream) noexcept;

}  // namespace alloctrace::torch_side
