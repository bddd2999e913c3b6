// csrc/core behind a C interface, for tests that drive it from Python (core_probe.py): the codec on bytes, whole
// recordings, and what a killed recording leaves behind. Neither torch nor an interpreter is in the way, so a test
// decides every event.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../csrc/core/format/event_codec.h"
#include "../../csrc/core/recording/recorder.h"

namespace alloctrace {
namespace {

std::map<std::int32_t, std::unique_ptr<Recorder>> recorders;
std::int32_t last_recorder = 0;
std::string last_error;

SpoolOptions spool_options(const char* path, std::uint64_t ring_events, std::uint64_t definitions_bytes,
                           std::uint64_t wait_ns) {
  SpoolOptions options;
  options.path = path;
  options.ring_events = ring_events;
  options.definitions_bytes = definitions_bytes;
  options.wait_ns = wait_ns;
  return options;
}

// The stacks 1 to 3.
constexpr FrameRecord kFrames[] = {{0, 1, 0}, {1, 2, 2}, {1, 2, 8}};

// A few definitions of each other type; events may name locations 1 to 3, node types and threads 1 and 2.
void define_names(Bytes& out) {
  put_string(out, 1, "outer");
  put_string(out, 2, "Model.inner");
  put_string(out, 3, "/home/user/train.py");
  put_string(out, 4, "a mark \xe2\x9c\x93");
  put_code(out, 1, {1, 0, 3, 10, LineTableKind::kNone, ""});
  put_code(out, 2, {1, 2, 3, -2, LineTableKind::kPython310, std::string("\x04\x01\x06\xff\x02\x80", 6)});
  put_thread(out, 1, {4242, 1, "main", ""});
  put_thread(out, 2, {4243, 2, "pt_worker", ""});
  put_thread_name(out, 2, "Worker-1");
  put_location(out, 1, {0, 0, 0, 0, 0});
  put_location(out, 2, {1, 3, 7, 0, 5});
  put_location(out, 3, {1, 3, 9, 0, 5});
  put_node_type(out, 1, {true, "N5torch8autograd9generated11MmBackward0E"});
  put_node_type(out, 2, {false, "TwiceBackward"});
  put_source_line(out, 3, 10, "    loss = step(model)");
}

}  // namespace
}  // namespace alloctrace

using namespace alloctrace;

extern "C" {

const char* probe_last_error() { return last_error.c_str(); }

// Bytes of the payload, written to `out` as far as they fit; the first `split` events stand for the ring's part up to
// its wrap.
std::uint64_t probe_encode(const Event* events, std::uint64_t count, std::uint64_t split, std::uint64_t begin_time,
                           std::uint8_t* out, std::uint64_t capacity) {
  // One encoder for all calls: nothing from one block may show in the next.
  static EventEncoder encoder;
  const Bytes& payload = encoder.encode({events, static_cast<std::size_t>(split)},
                                        {events + split, static_cast<std::size_t>(count - split)}, begin_time);
  std::copy_n(payload.begin(), std::min<std::size_t>(payload.size(), capacity), out);
  return payload.size();
}

// 0: decoded into `out`, which has room for `count` events; 1: refused, see probe_last_error().
std::int32_t probe_decode(const std::uint8_t* payload, std::uint64_t size, std::uint64_t count,
                          std::uint64_t begin_time, Event* out) {
  try {
    std::vector<Event> events;
    decode_events(payload, size, count, begin_time, events);
    std::copy(events.begin(), events.end(), out);
    return 0;
  } catch (const DecodeError& error) {
    last_error = error.what();
    return 1;
  }
}

// A handle, or 0: see probe_last_error(). `session_id` has 16 bytes. The definitions of define_names() are the first.
std::int32_t recorder_open(const char* path, const char* spool_path, const std::uint8_t* session_id,
                           std::uint64_t ring_events, std::uint64_t definitions_bytes, std::uint64_t wait_ns,
                           const char* header_json) {
  try {
    RecorderOptions options;
    options.path = path;
    options.spool = spool_options(spool_path, ring_events, definitions_bytes, wait_ns);
    options.header_json = header_json;
    std::memcpy(options.session_id, session_id, sizeof options.session_id);
    auto recorder = std::make_unique<Recorder>(options);
    Bytes names;
    define_names(names);
    recorder->publish();
    recorder->spool().definitions().append(names);
    // The table repeats them in the dictionary.
    for (const FrameRecord& frame : kFrames) recorder->stacks().frame_id(frame.parent, frame.code, frame.instruction);
    recorders[++last_recorder] = std::move(recorder);
    return last_recorder;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 0;
  }
}

// Stops a recording while a compaction has the writer wait for room. 1: the writer was told not to wait any longer.
std::int32_t probe_stop_while_compacting(const char* path, const char* spool_path) {
  class EndlessCompaction : public FileBound {
   public:
    explicit EndlessCompaction(std::atomic<int>& outcome) : outcome_(&outcome) {}
    void between_blocks(TraceFile&, std::uint64_t, const std::function<bool()>& is_urgent) noexcept override {
      constexpr int kPatience = 2000;
      for (int naps = 0; naps < kPatience; ++naps) {
        *outcome_ = is_urgent() ? 1 : -1;
        if (*outcome_ == 1) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    void stop() noexcept override {}

   private:
    std::atomic<int>* outcome_;
  };
  std::atomic<int> outcome{0};
  RecorderOptions options;
  options.path = path;
  options.spool = spool_options(spool_path, 64, 4096, 200'000'000);
  options.header_json = "{}";
  options.make_bound = [&outcome] { return std::make_unique<EndlessCompaction>(outcome); };
  Recorder recorder(options);
  recorder.publish();
  for (int number = 0; number < 32; ++number) recorder.push({});
  while (outcome == 0) std::this_thread::yield();
  recorder.stop("{}");
  return outcome;
}

// Cancels a thread while it waits for room in a full ring. 1: it ended only after push() had returned.
std::int32_t probe_cancel_waiting(const char* spool_path) {
  const std::uint8_t session[16] = {};
  std::atomic<bool> waits{false}, returned{false};
  Spool spool(spool_options(spool_path, 4, 4096, 200'000'000), session, [&] { waits = true; });
  while (spool.header().head < 4) spool.push({});
  waits = false;
  std::thread hook([&] {
    spool.push({});
    returned = true;
    pthread_testcancel();
    std::terminate();  // not cancelled at all
  });
  while (!waits) std::this_thread::yield();
  pthread_cancel(hook.native_handle());
  hook.join();
  return returned;
}

// How many of the events were taken; the others are lost.
std::uint64_t recorder_push(std::int32_t handle, const Event* events, std::uint64_t count) {
  Recorder& recorder = *recorders.at(handle);
  std::uint64_t taken = 0;
  for (std::uint64_t i = 0; i < count; ++i) taken += recorder.push(events[i]);
  return taken;
}

// `threads` native threads at once push `per_thread` events each, that carry their thread (from 1) and, as address,
// their number in it (from 1). How many were taken.
std::uint64_t recorder_push_from_threads(std::int32_t handle, std::uint32_t threads, std::uint64_t per_thread) {
  Recorder& recorder = *recorders.at(handle);
  std::atomic<std::uint64_t> taken{0};
  std::atomic<std::uint32_t> ready{0};
  std::vector<std::thread> running;
  for (std::uint32_t number = 1; number <= threads; ++number) {
    running.emplace_back([&, number] {
      ++ready;
      while (ready < threads) std::this_thread::yield();  // all at once, or they would come one after the other
      std::uint64_t mine = 0;
      for (std::uint64_t i = 1; i <= per_thread; ++i) {
        Event event{};
        event.time = read_counter();
        event.thread = number;
        event.address = i;
        event.size = i * number;
        event.kind = EventKind::kAlloc;
        mine += recorder.push(event);
      }
      taken += mine;
    });
  }
  for (std::thread& thread : running) thread.join();
  return taken;
}

std::int32_t recorder_flush(std::int32_t handle) { return recorders.at(handle)->flush(); }

// 1: all is in the trace and the spool is gone.
std::int32_t recorder_stop(std::int32_t handle) {
  const std::int32_t written = recorders.at(handle)->stop("{\"reason\": \"probe\"}");
  recorders.erase(handle);
  return written;
}

// Leaves a trace and its spool as a killed recording does, without waiting for a writer's timing: each time the ring is
// full, half of it is moved to the trace, so that what stays in the spool wraps around its end. Half of the definitions
// are in the spool only. 0, or 1: see probe_last_error().
std::int32_t probe_killed(const char* path, const char* spool_path, const std::uint8_t* session_id,
                          std::uint64_t ring_events, std::uint64_t definitions_bytes, const char* header_json,
                          const Event* events, std::uint64_t count) {
  try {
    std::uint8_t session[16];
    std::memcpy(session, session_id, sizeof session);
    Spool spool(spool_options(spool_path, ring_events, definitions_bytes, 0), session, [] {});
    spool.publish();
    TraceFile file(path, true, session);
    file.publish();
    const auto header = [&](BlockType type) {
      BlockHeader block{};
      block.type = type;
      block.first_sequence = spool.header().tail;
      block.end = ClockAnchor::now();
      spool.set_anchor(block.end);
      block.counters = spool.counters();
      return block;
    };
    file.append(header(BlockType::kHeader), std::string_view(header_json));

    Bytes names, pending;
    define_names(names);
    std::uint32_t stack = 0;
    for (const FrameRecord& frame : kFrames) put_frame(names, ++stack, frame);
    // The log's first half goes to the trace, up to the end of a record; the second wraps around its end where it is
    // that small.
    std::size_t half = 0;
    while (half < names.size() / 2) half += names[half] + 1u;
    spool.definitions().append({names.begin(), names.begin() + static_cast<std::ptrdiff_t>(half)});
    spool.definitions().release(spool.definitions().copy_pending(pending));
    file.append(header(BlockType::kDefinitions), pending);
    spool.definitions().append({names.begin() + static_cast<std::ptrdiff_t>(half), names.end()});

    EventEncoder encoder;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t tail = spool.header().tail;
      if (i - tail == ring_events) {
        const std::uint64_t end = spool.consume(std::max<std::uint64_t>(ring_events / 2, 1));
        const auto first = spool.events(tail, end);
        const auto second = spool.events(tail + first.size(), end);
        BlockHeader block = header(BlockType::kEvents);
        block.event_count = end - tail;
        file.append(block, encoder.encode(first, second, file.next_begin().counter));
        spool.release(end);
      }
      spool.push(events[i]);
    }
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

}  // extern "C"
