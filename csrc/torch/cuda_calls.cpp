#include "cuda_calls.h"

#include "../core/definitions.h"
#include "cuda_tracker.h"
#include "record_event.h"

namespace alloctrace::torch_side {
namespace {

constexpr double kSlowCallNs = 10'000;

}  // namespace

void TimedCall::finish(std::uint64_t begin, std::uint64_t end) noexcept {
  if (!cuda_is_traced()) return;
  const double nanoseconds = static_cast<double>(end - begin) * counter_nanoseconds();
  if (nanoseconds <= kSlowCallNs && !calls_of_this_thread.made_segments) return;
  calls_of_this_thread.made_segments = false;
  python::HookScope scope;
  if (!scope) return;
  python::ThreadContext& thread = scope.thread();
  // A call of zero bytes makes no event: the last one is an older call's.
  if (thread.last_event_session != scope.session().number || thread.last_event_time < begin) return;
  Event event{};
  event.kind = EventKind::kLatency;
  event.time = end;
  event.address = thread.last_event;
  event.size = static_cast<std::uint64_t>(nanoseconds);
  event.thread = thread.thread;
  thread.last_event_session = 0;  // one event, one latency
  scope.session().recorder.push(event);
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
