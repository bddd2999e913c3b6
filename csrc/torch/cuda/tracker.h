// The events of torch's native CUDA allocator, from its trace tracker: it is called under the device's lock, so in the
// true order, and also for calls that go around the allocator in front.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../../core/format/definitions.h"
#include "../../core/format/event_fields.h"
#include "../../core/recording/fast_thread_local.h"
#include "torch_release.h"

namespace alloctrace::torch_side {

constexpr std::int32_t kCudaType = static_cast<std::int32_t>(c10::DeviceType::CUDA);

// Whether the allocator reports to trackers. Among torch's own, only the caching one does.
bool has_trackers(native::CUDAAllocator& allocator);

// Starts recording the events of `upstream`: from its initialisation on, or, if that is done, from its present state
// on, which is written first.
void begin_cuda_tracing(native::CUDAAllocator& upstream, bool torch_is_initialised);
// Call when torch has just initialised the upstream.
void follow_initialised_allocator(native::CUDAAllocator& upstream);
// Writes the allocator's state into the trace as a checkpoint. False when there is none (CUDA not initialised, no
// recording of it, or an allocator that has no snapshots).
bool write_cuda_state(native::CUDAAllocator& upstream);
// Stops recording; the last thing recorded is the allocator's state.
void end_cuda_tracing(native::CUDAAllocator& upstream);

extern std::atomic<bool> cuda_tracing;
inline bool cuda_is_traced() { return cuda_tracing.load(std::memory_order_relaxed); }

// What the allocator in front and the tracker behind it know of each other's calls on a thread.
struct CallsOfThread {
  std::uint64_t forwarded = 0;    // calls that the allocator in front passed on: events with no such call between them
                                  // belong to one call, or to a free
  std::uint64_t begin = 0;        // when the allocation in progress was requested; 0: none is in progress
  bool made_segments = false;     // the allocation in progress did
  bool is_of_torch_cuda = false;  // the allocation in progress was called by libtorch_cuda itself: see library_blocks.h
};
extern constinit ALLOCTRACE_FAST_THREAD_LOCAL CallsOfThread calls_of_this_thread;

// An event that the allocator in front records itself.
void record_cuda_call(EventKind kind, const void* address, std::size_t size, const Location& where) noexcept;
// The same for an event with fields of its own kind (event_fields.h); time and context are added.
void record_cuda_call(Event event, const Location& where) noexcept;
void record_cuda_oom(std::uint64_t free_bytes, std::size_t size, const Location& where) noexcept;

}  // namespace alloctrace::torch_side
