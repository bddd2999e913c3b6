// A recording with a size limit, fed by a loop instead of a program: N events, as fast as the recorder accepts them,
// through the recorder's own ring, writer and compaction. A leak begins after a tenth of the events.
//
//   bounded_events --out TRACE --events N --max-bytes BYTES
//
// A step: temporaries from 64 lines, in a different order each time, and a gradient that lives until the next step.
// After the first tenth, one line leaks a block at regular intervals, 20,000 in total. Prints a JSON object per line:
// after each twentieth of the events the size of all files, the memory of the process, and the time per event; at the
// end the leak.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "../../csrc/core/bounding/trace_bound.h"
#include "../../csrc/core/recording/recorder.h"

using namespace alloctrace;

namespace {

constexpr int kLines = 64, kLeakLine = 1000, kGradientLine = 900;
constexpr std::uint64_t kStepEvents = 2000, kLeaked = 20'000, kRows = 20;
constexpr const char* kFile = "/home/user/train.py";

struct Options {
  std::string out;
  std::uint64_t events = 0, max_bytes = std::uint64_t{256} << 20;
};

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// Bytes of all files of the recording.
std::uint64_t taken(const std::string& path) {
  std::uint64_t total = 0;
  for (const char* suffix : {"", ".spool", ".compaction"}) {
    struct stat found{};
    if (stat((path + suffix).c_str(), &found) != 0) continue;
    total += std::max(static_cast<std::uint64_t>(found.st_size), 512 * static_cast<std::uint64_t>(found.st_blocks));
  }
  return total;
}

// Bytes of anonymous memory of this process.
std::uint64_t memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "RssAnon:") continue;
    std::uint64_t kibibytes = 0;
    status >> kibibytes;
    return kibibytes << 10;
  }
  return 0;
}

class Program {
 public:
  Program(const Options& options, Recorder& recorder) : options_(options), recorder_(recorder) {
    thread_ = recorder.add_thread({1, 1, "python", "MainThread"});
    location_ = recorder.location_id({});
    StackTable& stacks = recorder.stacks();
    const auto code = [&](const char* name, int line) {
      return stacks.add_code({name, name, kFile, line, LineTableKind::kNone, {}});
    };
    const std::uint32_t loop = stacks.frame_id(0, code("main", 10), 0);
    for (int line = 0; line < kLines; ++line) {
      lines_.push_back(stacks.frame_id(loop, code(("layer_" + std::to_string(line)).c_str(), 100 + line), 2));
    }
    gradient_ = stacks.frame_id(loop, code("backward", kGradientLine), 2);
    leak_ = stacks.frame_id(loop, code("remember", kLeakLine), 2);
  }

  void run() {
    const std::uint64_t steps = options_.events / kStepEvents, first_leak = steps / 10;
    const std::uint64_t every = std::max<std::uint64_t>((steps - first_leak) / kLeaked, 1);
    std::uint64_t gradient = 0, row = 1;
    began_ = row_began_ = clock_nanoseconds(CLOCK_MONOTONIC);
    for (std::uint64_t step = 0; step < steps; ++step) {
      for (std::uint64_t pair = 0; pair < kStepEvents / 2 - 2; ++pair) {
        const std::uint64_t random = mix(step * kStepEvents + pair);
        const std::uint64_t address = 0x10000000 + (random >> 20 & 0xffff) * 64;
        allocate(address, 64 + (random >> 36 & 0x3fff), lines_[random % kLines]);
        free(address);
      }
      if (step >= first_leak && step % every == 0) {
        allocate(0x200000000 + leaked_ * 4096, 2048, leak_);
        ++leaked_;
      }
      const std::uint64_t next = 0x100000000 + (step & 1) * 0x1000000;
      allocate(next, 1 << 20, gradient_);
      if (gradient != 0) free(gradient);
      gradient = next;
      Event event{};
      event.kind = EventKind::kStep;
      event.address = 1;
      event.size = step;
      push(event);
      if ((step + 1) * kRows >= row * steps) {
        say(row == kRows);
        ++row;
      }
    }
  }

  std::uint64_t leaked() const { return leaked_; }

 private:
  void push(Event& event) {
    event.time = read_counter();
    event.thread = thread_;
    event.location = location_;
    recorder_.push(event);
    ++pushed_;
  }
  void allocate(std::uint64_t address, std::uint64_t bytes, std::uint32_t stack) {
    Event event{};
    event.kind = EventKind::kAlloc;
    event.address = address;
    event.size = bytes;
    event.stack = stack;
    push(event);
  }
  void free(std::uint64_t address) {
    Event event{};
    event.kind = EventKind::kFreeCompleted;
    event.address = address;
    push(event);
  }

  void say(bool is_last) {
    if (is_last) recorder_.flush();
    const std::uint64_t now = clock_nanoseconds(CLOCK_MONOTONIC);
    std::printf(R"({"events": %llu, "seconds": %.1f, "ns_per_event": %.1f, "files": %llu, "memory": %llu})"
                "\n",
                static_cast<unsigned long long>(pushed_), static_cast<double>(now - began_) / 1e9,
                static_cast<double>(now - row_began_) / static_cast<double>(pushed_ - row_pushed_),
                static_cast<unsigned long long>(taken(options_.out)), static_cast<unsigned long long>(memory()));
    std::fflush(stdout);
    row_began_ = clock_nanoseconds(CLOCK_MONOTONIC);
    row_pushed_ = pushed_;
  }

  const Options& options_;
  Recorder& recorder_;
  std::vector<std::uint32_t> lines_;
  std::uint32_t thread_ = 0, location_ = 0, gradient_ = 0, leak_ = 0;
  std::uint64_t pushed_ = 0, row_pushed_ = 0, leaked_ = 0, began_ = 0, row_began_ = 0;
};

Options read(int count, char** arguments) {
  Options options;
  for (int at = 1; at + 1 < count; at += 2) {
    const std::string name = arguments[at];
    if (name == "--out") options.out = arguments[at + 1];
    if (name == "--events") options.events = std::strtoull(arguments[at + 1], nullptr, 10);
    if (name == "--max-bytes") options.max_bytes = std::strtoull(arguments[at + 1], nullptr, 10);
  }
  if (options.out.empty() || options.events < 100 * kStepEvents) {
    std::fprintf(stderr, "bounded_events --out TRACE --events N (200,000 or more) [--max-bytes BYTES]\n");
    std::exit(2);
  }
  return options;
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = read(count, arguments);
  RecorderOptions recording;
  recording.path = options.out;
  recording.overwrite = true;
  recording.spool.path = options.out + ".spool";
  // The loop is faster than any program, so it waits for the writer without a timeout.
  recording.spool.wait_ns = 600'000'000'000;
  recording.sources.enabled = false;
  recording.header_json =
      R"({"program": "/home/user/train.py", "arguments": [], "working_directory": "/home/user", "host": "made-up", )"
      R"("process": 4711, "rank": "0", "started": 0, "python": "3.11.0", "platform": "Linux", "torch": "2.11.0", )"
      R"("cuda": "", "devices": ["cpu"], "options": {}, "trace": "", "spool": "", "library_prefixes": )"
      R"(["/usr/lib/python3/"], "prefix": "/usr", "environment": {}})";
  // As in record_module.cpp.
  const std::uint64_t spool = kSpoolHeaderBytes + recording.spool.ring_events * sizeof(Event);
  const std::uint64_t at_once = 2 * recording.spool.definitions_bytes + (std::uint64_t{2} << 20);
  const SizeLimitOptions bound{options.out, options.max_bytes, spool + at_once, 0, {0, 0}};
  recording.make_bound = [bound] { return std::make_unique<TraceBound>(bound); };
  Recorder recorder(recording);
  recorder.publish();
  Program program(options, recorder);
  program.run();
  const bool written = recorder.stop(R"({"reason": "disable"})");
  std::printf(R"({"leaked": %llu, "file": "%s", "line": %d, "memory": %llu})"
              "\n",
              static_cast<unsigned long long>(program.leaked()), kFile, kLeakLine,
              static_cast<unsigned long long>(memory()));
  return written ? 0 : 1;
}
