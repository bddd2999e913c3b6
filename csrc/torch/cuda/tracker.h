// The events of torch's native CUDA allocator, as its trace tracker tells them: under the device's lock, in their true
// order, those of calls that go around the allocator in front too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../../core/format/definitions.h"
#include "../../core/format/event.h"
#include "../../core/recording/fast_thread_local.h"
#include "torch_release.h"

namespace alloctrace::torch_side {

constexpr std::int32_t kCudaType = static_cast<std::int32_t>(c10::DeviceType::CUDA);

// Whether the allocator tells trackers what it does: of torch's allocators, the caching one.
bool has_trackers(native::CUDAAllocator& allocator);

// Starts recording events of `upstream`: from its initialisation on, or, when it is initialised, from its present state
// on, which is written first.
void begin_cuda_tracing(native::CUDAAllocator& upstream, bool torch_is_initialised);
// The upstream was initialised just now, by torch.
void follow_initialised_allocator(native::CUDAAllocator& upstream);
// Writes the allocator's state into the trace as a check point. False when there is none (CUDA not initialised, no
// recording of it, or an allocator that has no snapshots).
bool write_cuda_state(native::CUDAAllocator& upstream);
// Stops recording; the last thing recorded is the allocator's state.
void end_cuda_tracing(native::CUDAAllocator& upstream);

extern std::atomic<bool> cuda_tracing;
inline bool cuda_is_traced() { return cuda_tracing.load(std::memory_order_relaxed); }

// What the allocator in front and the tracker behind it tell each other of a thread.
struct CallsOfThread {
  std::uint64_t forwarded = 0;  // calls that the allocator in front has passed on: two events between which none was
                                // passed on are of one call, or of a free
  std::uint64_t begin = 0;      // when the allocation that is going on was asked for; 0: none is
  bool made_segments = false;   // it did
};
extern constinit ALLOCTRACE_FAST_THREAD_LOCAL CallsOfThread calls_of_this_thread;

// An event that the allocator in front records itself.
void record_cuda_call(EventKind kind, const void* address, std::size_t size, const Location& where) noexcept;

}  // namespace alloctrace::torch_side
