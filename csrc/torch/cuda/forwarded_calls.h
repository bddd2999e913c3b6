// What only the allocator in front can see and record: how long an allocation took, and calls for which torch makes no
// trace entry.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>

#include "../../core/base/clock.h"
#include "library_blocks.h"
#include "tracker.h"

namespace alloctrace::torch_side {

// Stands around an allocating call of the upstream: its event (an alloc, or an oom if it throws) is followed by its
// latency, if that is over 10 microseconds or segments were made. It is measured up to the event: after that the
// upstream only counts.
class TimedCall {
 public:
  // caller: the code that called the allocator, if known.
  explicit TimedCall(const void* caller = nullptr) noexcept {
    calls_of_this_thread.begin = read_counter();
    calls_of_this_thread.is_of_torch_cuda = is_in_torch_cuda(caller);
  }
  ~TimedCall() {
    calls_of_this_thread.begin = 0;
    calls_of_this_thread.is_of_torch_cuda = false;
  }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;
};

// Stands around a call of the upstream that sets a pool back to an earlier state.
class RecordedPoolRestore {
 public:
  explicit RecordedPoolRestore(c10::DeviceIndex device) noexcept;
  ~RecordedPoolRestore();
  RecordedPoolRestore(const RecordedPoolRestore&) = delete;
  RecordedPoolRestore& operator=(const RecordedPoolRestore&) = delete;

 private:
  const c10::DeviceIndex device_;
};

// Stands around a call of the upstream that ends a use of a pool: afterwards one less uses it.
class RecordedPoolRelease {
 public:
  RecordedPoolRelease(native::CUDAAllocator& upstream, c10::DeviceIndex device, c10::MempoolId_t pool) noexcept;
  ~RecordedPoolRelease();
  RecordedPoolRelease(const RecordedPoolRelease&) = delete;
  RecordedPoolRelease& operator=(const RecordedPoolRelease&) = delete;

 private:
  const c10::DeviceIndex device_;
  const c10::MempoolId_t pool_;
  int uses_ = 0;  // before; 0: not recorded
};

// So many use the pool from now on; at 0 it is let go.
void record_pool_uses(c10::DeviceIndex device, c10::MempoolId_t pool, int left) noexcept;
void record_pool_allocator(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept;
void record_pool_use(c10::DeviceIndex device, c10::MempoolId_t pool, bool begins) noexcept;
void record_pool_on_oom(c10::DeviceIndex device, c10::MempoolId_t pool, bool begins) noexcept;
void record_capture(c10::DeviceIndex device, bool begins) noexcept;
void record_empty_cache(c10::MempoolId_t pool) noexcept;
void record_no_split(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept;
// torch will not reuse the block before the work that is now queued on that stream is done.
void record_stream_use(const void* address, c10::DeviceIndex device, const void* stream) noexcept;

}  // namespace alloctrace::torch_side
