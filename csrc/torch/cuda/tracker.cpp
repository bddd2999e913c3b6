#include "tracker.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "../../python/recording/memory_watch.h"
#include "../event_hold.h"
#include "../record_event.h"
#include "allocator_settings.h"
#include "allocator_state.h"
#include "library_blocks.h"

namespace alloctrace::torch_side {

std::atomic<bool> cuda_tracing{false};
constinit ALLOCTRACE_FAST_THREAD_LOCAL ThreadCalls thread_calls;

namespace {

// New in each recording and never destroyed: a forked child may inherit the mutex of an old one locked.
std::atomic<EventHold*> event_hold{nullptr};
std::atomic<LibraryBlocks*> library_blocks{nullptr};
// CUDA was in use before the recording. Storages from that time allocate from torch's allocator, bypassing ours.
std::atomic<bool> has_older_storages{false};
thread_local bool is_reading_state = false;  // this thread is in write_state(), which causes SNAPSHOT entries

EventKind event_kind(TraceEntry::Action action) {
  switch (action) {
    case TraceEntry::ALLOC:
      return EventKind::kAlloc;
    case TraceEntry::FREE_REQUESTED:
      return EventKind::kFreeRequested;
    case TraceEntry::FREE_COMPLETED:
      return EventKind::kFreeCompleted;
    case TraceEntry::SEGMENT_ALLOC:
      return EventKind::kSegmentAlloc;
    case TraceEntry::SEGMENT_FREE:
      return EventKind::kSegmentFree;
    case TraceEntry::SEGMENT_MAP:
      return EventKind::kSegmentMap;
    case TraceEntry::SEGMENT_UNMAP:
      return EventKind::kSegmentUnmap;
    case TraceEntry::SNAPSHOT:
      return EventKind::kSnapshot;
    case TraceEntry::OOM:
      return EventKind::kOom;
    default:
      return EventKind::kRaw;  // unknown action of a newer torch
  }
}

bool creates_segment(EventKind kind) { return kind == EventKind::kSegmentAlloc || kind == EventKind::kSegmentMap; }

constexpr double kSlowCallNs = 10'000;
// kSlowCallNs in ticks of the counter.
std::atomic<std::uint64_t> slow_call{0};

[[gnu::cold, gnu::noinline]] void push_latency(python::Session& session, std::uint64_t time, std::uint32_t thread,
                                               std::uint64_t sequence, std::uint64_t duration) {
  Event latency{};
  latency.kind = EventKind::kLatency;
  latency.time = time;
  LatencyFields(latency).of_event = sequence;
  LatencyFields(latency).nanoseconds =
      static_cast<std::uint64_t>(static_cast<double>(duration) * counter_nanoseconds());
  latency.thread = thread;
  session.recorder.push(latency);
}

constexpr std::uint64_t kHeld = UINT64_MAX, kLost = kHeld - 1;
// Push the event, or hold it while state is read. Return its number, kHeld if it is held, kLost if lost and counted.
std::uint64_t deliver(python::Session& session, const Event& event, int device, bool state_was_read = false) {
  EventHold& held_events = *event_hold.load(std::memory_order_acquire);
  if (held_events.is_on() && held_events.try_hold({event, device, state_was_read})) return kHeld;
  std::uint64_t sequence = kLost;
  const bool stored = session.recorder.push(event, &sequence);
  if (event.kind != EventKind::kAlloc && event.kind != EventKind::kOom) return sequence;
  python::note_device_use(device);
  ThreadCalls& call = thread_calls;
  LibraryBlocks& libraries = *library_blocks.load(std::memory_order_acquire);
  libraries.name(session, event.thread);
  if (stored && call.called_by_torch_cuda) libraries.add(event.thread, event.address, sequence);
  if (stored && call.begin != 0) {
    const std::uint64_t duration = event.time - call.begin;
    if (duration > slow_call.load(std::memory_order_relaxed) || call.created_segments) {
      push_latency(session, event.time, event.thread, sequence, duration);
    }
  }
  call.created_segments = false;
  return sequence;
}

[[gnu::cold, gnu::noinline]] void record_settings(python::Session& session, python::ThreadContext& thread,
                                                  std::uint64_t time, int device) {
  Event event{};
  event.kind = EventKind::kConfig;
  event.time = time;
  ConfigFields(event).settings = session.recorder.stacks().string_id(cuda_settings_text(device));
  add_context(session, thread, event, {kCudaType, device, 0, 0, 0});
  deliver(session, event, device);
}

Location location_of(const TraceEntry& entry) {
  return {kCudaType, entry.device_, reinterpret_cast<std::uint64_t>(entry.stream_), entry.mempool_.first,
          entry.mempool_.second};
}

[[gnu::noinline]] std::uint32_t look_up_location_id(python::Session& session, python::ThreadContext& thread,
                                                    const TraceEntry& entry) {
  return thread.location_id(session, location_of(entry));
}
// Return the id of the entry's location, usually the location of the thread's last event.
std::uint32_t location_id_of(python::Session& session, python::ThreadContext& thread, const TraceEntry& entry) {
  const auto& [last, id] = thread.last_location;
  return id != 0 && last.device_type == kCudaType && last.device_index == entry.device_ &&
                 last.stream == reinterpret_cast<std::uint64_t>(entry.stream_) &&
                 last.pool_first == entry.mempool_.first && last.pool_second == entry.mempool_.second
             ? id
             : look_up_location_id(session, thread, entry);
}

// Return whether the entry completes this thread's last requested free, within one call. A free that waited for a
// stream is completed by a later call, which was forwarded.
bool completes_request(const python::Session& session, const python::ThreadContext& thread, const TraceEntry& entry) {
  return thread.request.address == static_cast<std::uint64_t>(entry.addr_) && !thread.is_new(session) &&
         thread.request.call == thread_calls.forwarded;
}

// Mark the request's event as also completed; a lost request counts for both. Not with storages older than the
// recording: their allocations bypass the allocator in front and may complete a free that waited. Not within an
// allocation: out of memory, torch calls back to free blocks, then completes all waiting frees.
bool merge_into_request(python::Session& session, python::ThreadContext& thread, const TraceEntry& entry) {
  return completes_request(session, thread, entry) && !has_older_storages.load(std::memory_order_relaxed) &&
         thread_calls.begin == 0 &&
         (thread.request.number == kLost || session.recorder.complete_free(thread.request.number));
}

// Copy the request's event for its completion, which saves a stack walk. Only for older storages, where each free is
// two events. An allocation that may have completed the free is detected by another position in the Python code.
bool reuse_request_context(python::Session& session, python::ThreadContext& thread, const TraceEntry& entry,
                           Event& event) {
  if (!has_older_storages.load(std::memory_order_relaxed) || !completes_request(session, thread, entry) ||
      thread.request_position == 0 || thread.request_position != python::innermost_position()) {
    return false;
  }
  const std::uint64_t time = event.time;
  event = thread.request_event;
  event.time = time;
  event.kind = EventKind::kFreeCompleted;
  thread.request.address = 0;
  return true;
}

// Record anything but an allocation, a requested free, or a free completed at once.
[[gnu::cold, gnu::noinline]] void record_rare_event(python::Session& session, python::ThreadContext& thread,
                                                    const TraceEntry& entry) {
  Event event{};
  event.kind = event_kind(entry.action_);
  event.time = entry_time(entry);
  event.address = static_cast<std::uint64_t>(entry.addr_);
  event.size = entry.size_;
  const int device = entry.device_;
  if (creates_segment(event.kind) || event.kind == EventKind::kOom) {
    if (creates_segment(event.kind)) thread_calls.created_segments = true;
    // A failed allocation needed a segment, too.
    if (cuda_settings_changed(device, session.number, entry.size_, true))
      record_settings(session, thread, event.time, device);
  }
  if (event.kind != EventKind::kFreeCompleted || !reuse_request_context(session, thread, entry, event)) {
    add_context(session, thread, event, location_of(entry));
  }
  if (event.kind == EventKind::kRaw) RawFields(event).action = static_cast<std::uint64_t>(entry.action_);
  deliver(session, event, device, event.kind == EventKind::kSnapshot && is_reading_state);
}

// Record an allocation or a requested free.
void record_block(python::Session& session, python::ThreadContext& thread, const TraceEntry& entry, EventKind kind) {
  const int device = entry.device_;
  const std::uint64_t time = entry_time(entry);
  if (kind == EventKind::kAlloc && cuda_settings_changed(device, session.number, entry.size_, false)) [[unlikely]]
    record_settings(session, thread, time, device);
  const EventContext context = read_event_context(session, thread);
  const Event event{.commit = 0,
                    .stack = context.stack,
                    .time = time,
                    .address = static_cast<std::uint64_t>(entry.addr_),
                    .size = entry.size_,
                    .thread = context.thread,
                    .location = location_id_of(session, thread, entry),
                    .sequence = context.autograd.sequence,
                    .node_sequence = context.autograd.node_sequence,
                    .node_thread = context.autograd.node_thread,
                    .node_type = context.autograd.node_type,
                    .kind = kind,
                    .reserved = 0};
  const std::uint64_t number = deliver(session, event, device);
  if (kind != EventKind::kFreeRequested) return;
  thread.request = {number == kHeld ? 0 : event.address, number, thread_calls.forwarded};
  if (has_older_storages.load(std::memory_order_relaxed)) [[unlikely]] {
    thread.request_event = event;
    thread.request_position = python::innermost_position();
  }
}

// Record a trace entry: under the device's lock, on any thread, with or without the GIL (see record_event.h).
// Flattened, as all hooks are: between two events the program's code replaces ours in the processor's caches, and each
// call and cache line costs more than its work. Rare code is [[gnu::cold]], frequent code [[gnu::hot]], to be placed
// apart. Frequent code does not get the event's address, so that the event is not in memory before it is in the ring.
[[gnu::hot, gnu::flatten]] void on_trace_entry(const TraceEntry& entry) noexcept {
  if (!cuda_tracing.load(std::memory_order_acquire)) return;
  python::HookScope scope;
  if (!scope) return;
  python::Session& session = scope.session();
  python::ThreadContext& thread = scope.thread();
  try {
    if (entry.action_ == TraceEntry::FREE_COMPLETED && merge_into_request(session, thread, entry)) {
      thread.request.address = 0;
    } else if (entry.action_ == TraceEntry::ALLOC || entry.action_ == TraceEntry::FREE_REQUESTED) {
      record_block(session, thread, entry,
                   entry.action_ == TraceEntry::ALLOC ? EventKind::kAlloc : EventKind::kFreeRequested);
    } else {
      record_rare_event(session, thread, entry);
    }
  } catch (...) {
    session.recorder.spool().count_lost(LossCause::kFault);
  }
}

// Attach the tracker once per process: trackers cannot be detached. It does nothing unless `cuda_tracing`.
void attach_tracker(native::CUDAAllocator& upstream) {
  static std::atomic<native::CUDAAllocator*> attached{nullptr};
  // Two threads may call this at once: with a second tracker every event would be recorded twice.
  static std::mutex attaching;
  if (!has_trackers(upstream) || attached == &upstream) return;
  const std::lock_guard<std::mutex> guard(attaching);
  if (attached == &upstream) return;
  upstream.attachAllocatorTraceTracker(&on_trace_entry);
  attached = &upstream;
}

// Insert the allocator's state into the events where it was read. If `starts_recording`, drop the events before it.
void write_state(native::CUDAAllocator& upstream, bool starts_recording) {
  EventHold& held_events = *event_hold.load(std::memory_order_acquire);
  held_events.begin();
  if (starts_recording) cuda_tracing.store(true, std::memory_order_release);
  StateByDevice state;
  std::vector<DevicePool> released;
  LibraryWorkspaces workspaces;
  bool is_read = false;
  try {
    is_reading_state = true;
    state = read_state(upstream);
    if (starts_recording) released = released_pools(upstream, state);
    workspaces = read_library_workspaces();
    is_read = true;
  } catch (...) {  // out of memory; held events must still be delivered
  }
  is_reading_state = false;
  // Not earlier: the tracker's own scope on this thread would then be inside a hook, and record nothing.
  python::HookScope scope;
  std::size_t device_of_entry = 0;  // by order of the entries: torch writes device 0 into each
  std::vector<bool> started(state.size(), !starts_recording);
  held_events.finish([&](const HeldEvent& held) {
    if (!scope) return;
    if (!held.state_was_read) {
      const auto device = static_cast<std::size_t>(held.device);
      if (!is_read || device >= started.size() || started[device]) scope.session().recorder.push(held.event);
      return;
    }
    scope.session().recorder.push(held.event);
    const std::size_t device = device_of_entry++;
    if (device >= state.size()) return;
    push_state(scope.session(), static_cast<int>(device), state[device], workspaces, held.event.time);
    for (const DevicePool& pool : released) {
      if (static_cast<std::size_t>(pool.first) == device) push_pool_release(scope.session(), pool, held.event.time);
    }
    started[device] = true;
  });
  if (scope) library_blocks.load(std::memory_order_acquire)->name(scope.session(), 0);
  if (scope && !is_read) scope.session().recorder.spool().count_lost(LossCause::kFault);
}

}  // namespace

bool has_trackers(native::CUDAAllocator& allocator) { return allocator.name() == "native"; }

void begin_cuda_tracing(native::CUDAAllocator& upstream, bool torch_is_initialised) {
  event_hold.store(std::make_unique<EventHold>().release(), std::memory_order_release);
  library_blocks.store(std::make_unique<LibraryBlocks>().release(), std::memory_order_release);
  slow_call.store(static_cast<std::uint64_t>(kSlowCallNs / counter_nanoseconds()), std::memory_order_relaxed);
  find_torch_cuda_code();
  has_older_storages.store(upstream.initialized(), std::memory_order_relaxed);
  if (!upstream.initialized()) {
    cuda_tracing.store(true, std::memory_order_release);
    return;
  }
  if (torch_is_initialised || has_trackers(upstream)) record_devices();
  attach_tracker(upstream);
  if (has_trackers(upstream)) {
    write_state(upstream, true);
    record_memory_fractions(upstream);
  } else {
    cuda_tracing.store(true, std::memory_order_release);
  }
}

void on_allocator_initialised(native::CUDAAllocator& upstream) {
  attach_tracker(upstream);
  if (!cuda_is_traced()) return;
  record_devices();
  record_memory_fractions(upstream);
}

bool write_cuda_state(native::CUDAAllocator& upstream) {
  if (!cuda_is_traced() || !upstream.initialized() || !has_trackers(upstream)) return false;
  write_state(upstream, false);
  return true;
}

void end_cuda_tracing(native::CUDAAllocator& upstream) {
  write_cuda_state(upstream);
  cuda_tracing.store(false, std::memory_order_release);
}

void record_cuda_call(EventKind kind, const void* address, std::size_t size, const Location& where) noexcept {
  Event event{};
  event.kind = kind;
  event.address = reinterpret_cast<std::uint64_t>(address);
  event.size = size;
  record_cuda_call(event, where);
}

void record_cuda_oom(std::uint64_t free_bytes, std::size_t size, const Location& where) noexcept {
  Event event{};
  event.kind = EventKind::kOom;
  event.size = size;
  OomFields(event).free_bytes = free_bytes;
  record_cuda_call(event, where);
}

void record_cuda_call(Event event, const Location& where) noexcept {
  python::HookScope scope;
  if (!scope) return;
  try {
    event.time = read_counter();
    add_context(scope.session(), scope.thread(), event, where);
    deliver(scope.session(), event, where.device_index);
  } catch (...) {
    scope.session().recorder.spool().count_lost(LossCause::kFault);
  }
}

}  // namespace alloctrace::torch_side
