// What only the allocator in front can see, and records: how long an allocation took, and the calls that leave no trace
// entry of torch's own.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>

#include "../core/clock.h"

namespace alloctrace::torch_side {

// Around a call of the upstream that allocates. A call over 10 microseconds, or one that made segments, is recorded
// with its latency, also when it ends with an exception.
class TimedCall {
 public:
  TimedCall() noexcept : begin_(read_counter()) {}
  ~TimedCall() { finish(begin_, read_counter()); }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;

 private:
  static void finish(std::uint64_t begin, std::uint64_t end) noexcept;
  const std::uint64_t begin_;
};

void record_empty_cache(c10::MempoolId_t pool) noexcept;
void record_no_split(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept;
// torch will not reuse the block before the work that is now queued on that stream is done.
void record_stream_use(const void* address, c10::DeviceIndex device, const void* stream) noexcept;

}  // namespace alloctrace::torch_side
