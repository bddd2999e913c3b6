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
#include "devices.h"
#include "library_blocks.h"

namespace alloctrace::torch_side {

std::atomic<bool> cuda_tracing{false};
constinit ALLOCTRACE_FAST_THREAD_LOCAL CallsOfThread calls_of_this_thread;

namespace {

// Each recording has new ones, never destroyed: a forked child may inherit the mutex of an old one locked.
std::atomic<EventHold*> hold{nullptr};
std::atomic<LibraryBlocks*> library_blocks{nullptr};
// CUDA was in use before the recording: storages from that time ask torch's allocator directly for more memory, not the
// one in front.
std::atomic<bool> has_older_storages{false};
thread_local bool reads_state = false;  // this thread is in write_state(): the SNAPSHOT entries are ours

EventKind kind_of(TraceEntry::Action action) {
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
      return EventKind::kRaw;  // from a newer torch: kept as it came
  }
}

bool makes_segment(EventKind kind) { return kind == EventKind::kSegmentAlloc || kind == EventKind::kSegmentMap; }

constexpr double kSlowCallNs = 10'000;
// The same on the counter.
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

// Into the trace; while the allocator's state is being read, the event is held until that is done. Returns the event's
// number. kHeld: it has none yet. kLost: it will have none, and is counted.
constexpr std::uint64_t kHeld = UINT64_MAX, kLost = kHeld - 1;
std::uint64_t deliver(python::Session& session, const Event& event, int device, bool state_is_here = false) {
  EventHold& waiting = *hold.load(std::memory_order_acquire);
  if (waiting.is_on() && waiting.keep({event, device, state_is_here})) return kHeld;
  std::uint64_t sequence = kLost;
  const bool stored = session.recorder.push(event, &sequence);
  if (event.kind != EventKind::kAlloc && event.kind != EventKind::kOom) return sequence;
  python::note_device_use(device);
  CallsOfThread& call = calls_of_this_thread;
  LibraryBlocks& of_libraries = *library_blocks.load(std::memory_order_acquire);
  of_libraries.name(session, event.thread);
  if (stored && call.is_of_torch_cuda) of_libraries.note(event.thread, event.address, sequence);
  if (stored && call.begin != 0) {
    const std::uint64_t duration = event.time - call.begin;
    if (duration > slow_call.load(std::memory_order_relaxed) || call.made_segments) {
      push_latency(session, event.time, event.thread, sequence, duration);
    }
  }
  call.made_segments = false;
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

[[gnu::noinline]] std::uint32_t find_location_id(python::Session& session, python::ThreadContext& thread,
                                                 const TraceEntry& entry) {
  return thread.location_id(session, location_of(entry));
}
// Most events are where the last one of their thread was.
std::uint32_t location_id_of(python::Session& session, python::ThreadContext& thread, const TraceEntry& entry) {
  const auto& [last, id] = thread.last_location;
  return id != 0 && last.device_type == kCudaType && last.device_index == entry.device_ &&
                 last.stream == reinterpret_cast<std::uint64_t>(entry.stream_) &&
                 last.pool_first == entry.mempool_.first && last.pool_second == entry.mempool_.second
             ? id
             : find_location_id(session, thread, entry);
}

// Most frees are completed by the call that requested them, on the same thread with nothing passed on since. A free
// that waited for a stream is completed by a later call, which the allocator in front passed on.
bool is_of_last_request(const python::Session& session, const python::ThreadContext& thread, const TraceEntry& entry) {
  return thread.request.address == static_cast<std::uint64_t>(entry.addr_) && !thread.is_new(session) &&
         thread.request.call == calls_of_this_thread.forwarded;
}

// The event of the request then says both; where that was lost, it counts for both. Not with storages older than the
// recording: the allocator in front does not see their allocations, so one of those may be what completes a free that
// waited. Not within an allocation either: out of memory, torch has others free what they can do without, and then
// completes all that waits.
bool complete_at_once(python::Session& session, python::ThreadContext& thread, const TraceEntry& entry) {
  return is_of_last_request(session, thread, entry) && !has_older_storages.load(std::memory_order_relaxed) &&
         calls_of_this_thread.begin == 0 &&
         (thread.request.number == kLost || session.recorder.complete_free(thread.request.number));
}

// With older storages each free is two events, whose stack need not be walked twice if the free and the allocation that
// might have completed it are not at the same place of the Python code.
bool take_context_of_request(python::Session& session, python::ThreadContext& thread, const TraceEntry& entry,
                             Event& event) {
  if (!has_older_storages.load(std::memory_order_relaxed) || !is_of_last_request(session, thread, entry) ||
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

// What is neither an allocation nor a free that completes at once.
[[gnu::cold, gnu::noinline]] void record_other(python::Session& session, python::ThreadContext& thread,
                                               const TraceEntry& entry) {
  Event event{};
  event.kind = kind_of(entry.action_);
  event.time = entry_time(entry);
  event.address = static_cast<std::uint64_t>(entry.addr_);
  event.size = entry.size_;
  const int device = entry.device_;
  if (makes_segment(event.kind) || event.kind == EventKind::kOom) {
    if (makes_segment(event.kind)) calls_of_this_thread.made_segments = true;
    // A refused request wanted a segment, too.
    if (cuda_settings_changed(device, session.number, entry.size_, true))
      record_settings(session, thread, event.time, device);
  }
  if (event.kind != EventKind::kFreeCompleted || !take_context_of_request(session, thread, entry, event)) {
    add_context(session, thread, event, location_of(entry));
  }
  if (event.kind == EventKind::kRaw) RawFields(event).action = static_cast<std::uint64_t>(entry.action_);
  deliver(session, event, device, event.kind == EventKind::kSnapshot && reads_state);
}

// An allocation, or the request of a free.
void record_block(python::Session& session, python::ThreadContext& thread, const TraceEntry& entry, EventKind kind) {
  const int device = entry.device_;
  const std::uint64_t time = entry_time(entry);
  if (kind == EventKind::kAlloc && cuda_settings_changed(device, session.number, entry.size_, false)) [[unlikely]]
    record_settings(session, thread, time, device);
  const EventContext context = context_of(session, thread);
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
  thread.request = {number == kHeld ? 0 : event.address, number, calls_of_this_thread.forwarded};
  if (has_older_storages.load(std::memory_order_relaxed)) [[unlikely]] {
    thread.request_event = event;
    thread.request_position = python::innermost_position();
  }
}

// Runs under the device's lock, on any thread, with or without the GIL: see record_event.h.
//
// Flat, as the other hooks are: between two events the program runs so much other code that the processor has forgotten
// ours, and each call and each cache line of code on the way costs more than what it does. For the same reason, what
// is rare is [[gnu::cold]] and what is not [[gnu::hot]]: they are kept apart. And nothing that is not rare gets the
// address of the event: it is then never in memory before it is in the ring.
[[gnu::hot, gnu::flatten]] void on_trace_entry(const TraceEntry& entry) noexcept {
  if (!cuda_tracing.load(std::memory_order_acquire)) return;
  python::HookScope scope;
  if (!scope) return;
  python::Session& session = scope.session();
  python::ThreadContext& thread = scope.thread();
  try {
    if (entry.action_ == TraceEntry::FREE_COMPLETED && complete_at_once(session, thread, entry)) {
      thread.request.address = 0;
    } else if (entry.action_ == TraceEntry::ALLOC || entry.action_ == TraceEntry::FREE_REQUESTED) {
      record_block(session, thread, entry,
                   entry.action_ == TraceEntry::ALLOC ? EventKind::kAlloc : EventKind::kFreeRequested);
    } else {
      record_other(session, thread, entry);
    }
  } catch (...) {
    session.recorder.spool().count_lost(LossCause::kFault);
  }
}

// Trackers cannot be detached: there is one for the life of the process, which does nothing unless `cuda_tracing`.
void attach_tracker(native::CUDAAllocator& upstream) {
  static std::atomic<native::CUDAAllocator*> attached{nullptr};
  // Two threads may come here at once: with a second tracker every event would be recorded twice.
  static std::mutex attaching;
  if (!has_trackers(upstream) || attached == &upstream) return;
  const std::lock_guard<std::mutex> guard(attaching);
  if (attached == &upstream) return;
  upstream.attachAllocatorTraceTracker(&on_trace_entry);
  attached = &upstream;
}

// Reads the allocator's state and puts it among the events, exactly where it was read. With `from_here`, the events
// before it are dropped: their effect is in the state.
void write_state(native::CUDAAllocator& upstream, bool from_here) {
  EventHold& waiting = *hold.load(std::memory_order_acquire);
  waiting.begin();
  if (from_here) cuda_tracing.store(true, std::memory_order_release);
  StateByDevice state;
  std::vector<PoolOfDevice> let_go;
  LibraryWorkspaces workspaces;
  bool known = false;
  try {
    reads_state = true;
    state = read_state(upstream);
    if (from_here) let_go = pools_let_go(upstream, state);
    workspaces = library_workspaces();
    known = true;
  } catch (...) {  // for want of memory; the held events must be delivered all the same
  }
  reads_state = false;
  // Not earlier: the tracker's own scope, on this thread, would find itself in a hook already.
  python::HookScope scope;
  std::size_t device_of_entry = 0;  // torch writes device 0 into each, so it goes by their order
  std::vector<bool> begun(state.size(), !from_here);
  waiting.end([&](const HeldEvent& held) {
    if (!scope) return;
    if (!held.state_is_here) {
      const auto device = static_cast<std::size_t>(held.device);
      if (!known || device >= begun.size() || begun[device]) scope.session().recorder.push(held.event);
      return;
    }
    scope.session().recorder.push(held.event);
    const std::size_t device = device_of_entry++;
    if (device >= state.size()) return;
    push_state(scope.session(), static_cast<int>(device), state[device], workspaces, held.event.time);
    for (const PoolOfDevice& pool : let_go) {
      if (static_cast<std::size_t>(pool.first) == device) push_let_go(scope.session(), pool, held.event.time);
    }
    begun[device] = true;
  });
  if (scope) library_blocks.load(std::memory_order_acquire)->name(scope.session(), 0);
  if (scope && !known) scope.session().recorder.spool().count_lost(LossCause::kFault);
}

}  // namespace

bool has_trackers(native::CUDAAllocator& allocator) { return allocator.name() == "native"; }

void begin_cuda_tracing(native::CUDAAllocator& upstream, bool torch_is_initialised) {
  hold.store(std::make_unique<EventHold>().release(), std::memory_order_release);
  library_blocks.store(std::make_unique<LibraryBlocks>().release(), std::memory_order_release);
  slow_call.store(static_cast<std::uint64_t>(kSlowCallNs / counter_nanoseconds()), std::memory_order_relaxed);
  find_torch_cuda();
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

void follow_initialised_allocator(native::CUDAAllocator& upstream) {
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
