// Events of torch's native CUDA allocator, from its trace tracker, also of calls that bypass the allocator in front.
//
// Contract:
// - torch calls the tracker under the device's lock, on any thread: events of one device are pushed in true order,
//   those of different devices in any order.
// - State is pushed among the events at the point where it was read. Events that come while state is read are held and
//   pushed afterwards (event_hold.h). When a recording starts, a device's events before its state are discarded.
// - begin_cuda_tracing(), write_cuda_state() and end_cuda_tracing() must not run at the same time: the recording's lock
//   in Python is held.
// - The tracker throws nothing: an event without memory is counted as lost.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../../core/base/thread.h"
#include "../../core/format/definitions.h"
#include "../../core/format/event_fields.h"
#include "torch_release.h"

namespace alloctrace::torch_side {

constexpr std::int32_t kCudaType = static_cast<std::int32_t>(c10::DeviceType::CUDA);

// Return whether the allocator reports to trackers. Among torch's own, only the caching one does.
bool has_trackers(native::CUDAAllocator& allocator);

// Start recording the events of `upstream`: write its state first, or, if it is not initialised, wait until it is.
void begin_cuda_tracing(native::CUDAAllocator& upstream, bool torch_is_initialised);
// Attach the tracker. Call when torch has just initialised the upstream.
void on_allocator_initialised(native::CUDAAllocator& upstream);
// Write the state as a checkpoint. Return false if CUDA is not initialised or not recorded, or has no tracker.
bool write_cuda_state(native::CUDAAllocator& upstream);
// Write the final state, then stop recording.
void end_cuda_tracing(native::CUDAAllocator& upstream);

extern std::atomic<bool> cuda_tracing;
inline bool cuda_is_traced() { return cuda_tracing.load(std::memory_order_relaxed); }

// Calls on one thread, as exchanged between the allocator in front and the tracker.
struct ThreadCalls {
  std::uint64_t forwarded = 0;        // forwarded by the allocator in front; equal for all events of one call or free
  std::uint64_t begin = 0;            // counter at the request of the current allocation; 0: none
  bool created_segments = false;      // by the current allocation
  bool called_by_torch_cuda = false;  // libtorch_cuda itself requested the current allocation: see library_blocks.h
};
extern constinit ALLOCTRACE_FAST_THREAD_LOCAL ThreadCalls thread_calls;

// Record an event of the allocator in front.
void record_cuda_call(EventKind kind, const void* address, std::size_t size, const Location& where) noexcept;
// Record an event with fields of its kind (event_fields.h) after adding time and context.
void record_cuda_call(Event event, const Location& where) noexcept;
void record_cuda_oom(std::uint64_t free_bytes, std::size_t size, const Location& where) noexcept;

}  // namespace alloctrace::torch_side
