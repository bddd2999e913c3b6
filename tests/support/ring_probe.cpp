// A recording in which everything happens at once, for the thread sanitizer: hooks on several threads push events and
// define names, the writer drains, others flush and exchange source lines, and at the end it stops. Small rings wrap
// around often, and lose events where hooks do not wait.
//
//   ring_probe TRACE SPOOL SOURCE RING_EVENTS WAIT_NS THREADS EVENTS_PER_THREAD
//
// Prints how many events were taken, and of how many frees the completion came too late to be one event with the
// request. Thread t pushes events with thread=t and address=1, 2, ...; those of even addresses are requests of frees,
// which are then completed.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "../../csrc/core/recording/recorder.h"

using namespace alloctrace;

namespace {

struct Pushed {
  std::atomic<std::uint64_t> taken{0}, late{0};
};

void push_events(Recorder& recorder, std::uint32_t thread, std::uint64_t count, const char* source, Pushed& pushed) {
  std::uint64_t taken = 0, late = 0;
  std::uint32_t stack = 0, location = 0;
  for (std::uint64_t i = 1; i <= count; ++i) {
    if (i % 256 == 1) {
      const std::uint64_t number = i / 256 % 8;
      recorder.add_thread({thread, thread, "hook", ""});
      recorder.node_type_id({false, "node " + std::to_string(number)});
      location = recorder.location_id({1, 0, number, 0, thread});
      const std::string name = "function " + std::to_string(number);
      const std::uint32_t code = recorder.stacks().add_code(
          {name, name, source, static_cast<std::int32_t>(number) + 1, LineTableKind::kNone, {}});
      stack = recorder.stacks().frame_id(0, code, 0);
    }
    Event event{};
    event.time = read_counter();
    event.kind = i % 2 == 0 ? EventKind::kFreeRequested : EventKind::kAlloc;
    event.thread = thread;
    event.stack = stack;
    event.location = location;
    event.address = i;
    event.size = i * thread;
    std::uint64_t sequence = 0;
    if (!recorder.push(event, &sequence)) continue;
    ++taken;
    if (i % 32 == 0) std::this_thread::yield();
    if (event.kind == EventKind::kFreeRequested && !recorder.complete_free(sequence)) {
      ++late;
      event.kind = EventKind::kFreeCompleted;
      taken += recorder.push(event, &sequence);
    }
    // The next claim would publish this event whatever its commit does: the writer must have read it before.
    while (i % 512 == 0 && recorder.spool().header().tail.load(std::memory_order_relaxed) <= sequence) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  pushed.taken += taken;
  pushed.late += late;
}

}  // namespace

int main(int, char** arguments) {
  RecorderOptions options;
  options.path = arguments[1];
  options.spool.path = arguments[2];
  const char* const source = arguments[3];
  options.spool.ring_events = std::strtoull(arguments[4], nullptr, 10);
  options.spool.wait_ns = std::strtoull(arguments[5], nullptr, 10);
  const auto threads = static_cast<std::uint32_t>(std::atoi(arguments[6]));
  const std::uint64_t count = std::strtoull(arguments[7], nullptr, 10);
  options.header_json = "{}";

  Recorder recorder(options);
  recorder.publish();
  Pushed pushed;
  std::atomic<bool> done{false};
  std::vector<std::thread> hooks;
  for (std::uint32_t thread = 1; thread <= threads; ++thread) {
    hooks.emplace_back([&, thread] { push_events(recorder, thread, count, source, pushed); });
  }
  std::thread program([&] {
    while (!done) {
      recorder.flush();
      for (const auto& [filename, line] : recorder.sources().drain_unread()) {
        recorder.add_source_line(filename, line, "from elsewhere");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (std::thread& hook : hooks) hook.join();
  done = true;
  program.join();
  const bool written = recorder.stop("{}");
  std::printf("%llu %llu\n", static_cast<unsigned long long>(pushed.taken.load()),
              static_cast<unsigned long long>(pushed.late.load()));
  return written ? 0 : 1;
}
