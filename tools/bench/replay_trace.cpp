// Generates a trace of a simulated training run of any length: replay_trace --out FILE --events N [--live N]
// [--steps N] [--stacks N] [--depth N] [--codes N] [--seed N]. Prints a summary as one line of JSON.
//
// A step allocates activations and short-lived buffers in forward, frees the activations in reverse order in backward,
// and replaces some long-lived blocks; the allocator is native_model.h. Two devices, three streams on each. Each line
// of the program allocates a fixed size, as in a real program, except for a tenth that varies from step to step.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../csrc/core/format/definitions.h"
#include "../../csrc/core/format/event_fields.h"
#include "native_model.h"
#include "trace_maker.h"

namespace alloctrace::bench {
namespace {

struct Options {
  std::string out;
  std::uint64_t events = 1'000'000, live = 0, steps = 0, stacks = 50'000, depth = 30, codes = 300, seed = 1;
};

constexpr int kDevices = 2, kStreams = 3;
constexpr std::int32_t kCudaType = 1;
constexpr std::uint32_t kMainThread = 1, kBackwardThread = 2;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr char kSettings[] =
    R"({"expandable_segments": false, "large_segment_size": 20971520, "max_split_size": 18446744073709551615, )"
    R"("max_non_split_rounding_size": 18446744073709551615, "garbage_collection_threshold": 0, )"
    R"("graph_capture_record_stream_reuse": false, "roundup_power2_divisions": )"
    R"([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]})";

std::uint64_t mix(std::uint64_t a, std::uint64_t b = 0) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15u + b * 0xC2B2AE3D27D4EB4Fu + 0x165667B19E3779F9u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}
double unit(std::uint64_t hash) { return static_cast<double>(hash >> 11) * 0x1p-53; }
std::uint64_t between(double low, double high, double share) {
  return static_cast<std::uint64_t>(low * std::pow(high / low, share));
}

// A line of the program that allocates.
struct Site {
  std::uint64_t size;
  std::uint32_t stack;
  std::uint8_t device, stream;
  bool varies, waits;  // another size each step; freed while another stream still uses it
};

struct Owned {
  BlockId block = kNoBlock;
  std::uint8_t device = 0;
  bool waits = false;
};

struct Context {
  std::uint32_t thread = kMainThread, stack = 0;
  std::uint64_t node_sequence = 0;
  std::uint16_t node_type = 0;
};

class Training : public EventSink {
 public:
  Training(const Options& options, TraceMaker& maker) : options_(options), maker_(maker) {
    for (int device = 0; device < kDevices; ++device) {
      devices_.emplace_back(*this, device, std::uint64_t(device + 1) << 44);
    }
    define_names();
    define_stacks();
  }

  void run() {
    const std::uint64_t step_events = options_.events / options_.steps;
    const std::uint64_t step_allocs = step_events / 3;
    const std::uint64_t activations = std::min(step_allocs / 3, options_.live / 2);
    const std::uint64_t buffers = activations == 0 ? 0 : (step_allocs - activations) / activations;  // for each
    const std::uint64_t lasting = options_.live - activations;
    // Most long-lived blocks exist before the first step; the remaining ones follow gradually, so the peak is late.
    grow(lasting - lasting / 5);
    for (std::uint64_t step = 0; !done(); ++step) {
      forward(step, activations, buffers);
      backward(step, buffers);
      replace(step, lasting / 100 / 2 + 1);
      grow(std::min(lasting, lasting - lasting / 5 + (step + 2) * lasting / 5 / options_.steps));
      if (done()) break;  // in the middle of the step, as programs are stopped
      if (step % std::max<std::uint64_t>(options_.steps / 4, 2) == 1) empty_cache();
      position(step);
    }
    write_state();
  }

  void emit(EventKind kind, std::uint64_t address, std::uint64_t size, int device, int stream) override {
    const bool makes_segment = kind == EventKind::kSegmentAlloc;
    if (!configured_[device]) {
      configured_[device] = true;
      push(EventKind::kConfig, 0, settings_, location(device, 0));
    }
    maker_.advance(makes_segment                       ? 300'000
                   : kind == EventKind::kFreeCompleted ? 300
                                                       : 800 + mix(maker_.sequence()) % 24'000);
    const std::uint64_t sequence = maker_.sequence();
    push(kind, address, size, location(device, stream));
    if (makes_segment) made_segment_ = true;
    if (kind == EventKind::kAlloc && made_segment_) {
      made_segment_ = false;
      push(EventKind::kLatency, sequence, 310'000, 0);
    }
    live_peak_ = std::max(live_peak_, devices_[0].live() + devices_[1].live());
  }

  std::uint64_t live_peak() const { return live_peak_; }
  const std::vector<NativeModel>& devices() const { return devices_; }

 private:
  bool done() const { return maker_.sequence() >= options_.events; }

  static std::uint32_t location(int device, int stream) {
    return static_cast<std::uint32_t>(device * kStreams + stream + 1);
  }

  void push(EventKind kind, std::uint64_t address, std::uint64_t size, std::uint32_t where) {
    Event event{};
    event.kind = kind;
    event.address = address;
    event.size = size;
    event.location = where;
    event.stack = context_.stack;
    event.thread = context_.thread;
    if (context_.thread == kMainThread) event.sequence = next_node_;
    event.node_sequence = context_.node_sequence;
    event.node_thread = context_.node_type ? 1 : 0;
    event.node_type = context_.node_type;
    maker_.push(event);
  }

  // Sizes as in training: most blocks small, most bytes in a few large ones.
  Site site(std::uint64_t number) const {
    const std::uint64_t hash = mix(options_.seed, number);
    const double kind = unit(mix(hash, 1)), share = unit(mix(hash, 2));
    Site made{};
    made.size = kind < 0.80    ? between(4, kMiB, share)
                : kind < 0.95  ? between(kMiB, 10 * kMiB, share)
                : kind < 0.997 ? between(10 * kMiB, 64 * kMiB, share)
                               : between(64 * kMiB, 512 * kMiB, share);
    made.stack = stacks_[mix(hash, 3) % stacks_.size()];
    made.device = unit(mix(hash, 4)) < 0.7 ? 0 : 1;
    made.stream = static_cast<std::uint8_t>(std::max(0, static_cast<int>(mix(hash, 5) % 10) - 7));
    made.varies = mix(hash, 6) % 10 == 0;
    made.waits = mix(hash, 7) % 50 == 0;
    return made;
  }

  Owned allocate(const Site& where, std::uint64_t step) {
    complete_waiting(where.device);
    if (context_.thread == kMainThread) context_.stack = where.stack;
    const std::uint64_t size = where.varies ? where.size + where.size * (mix(step, where.size) % 64) / 64 : where.size;
    return {devices_[where.device].allocate(size, where.stream), where.device, where.waits};
  }

  void free(const Owned& owned) {
    NativeModel& device = devices_[owned.device];
    const NativeModel::Block block = device.block(owned.block);
    if (owned.waits)
      push(EventKind::kStreamUse, block.address, 0, location(owned.device, (block.stream + 1) % kStreams));
    device.request_free(owned.block);
    if (owned.waits) {
      waiting_[owned.device].push_back(owned.block);
    } else {
      device.complete_free(owned.block);
    }
  }

  // The other stream has caught up: torch finds out at an allocation.
  void complete_waiting(int device, std::size_t keep = 16) {
    for (; waiting_[device].size() > keep; waiting_[device].pop_front()) {
      devices_[device].complete_free(waiting_[device].front());
    }
  }

  // A buffer that lives until a few later buffers are allocated.
  void buffer(std::uint64_t number, std::uint64_t step) {
    Owned& slot = buffers_[buffer_++ % std::size(buffers_)];
    const Owned made = allocate(site(number), step);
    if (slot.block != kNoBlock) free(slot);
    slot = made;
  }

  void forward(std::uint64_t step, std::uint64_t activations, std::uint64_t buffers) {
    context_ = {};
    for (std::uint64_t i = 0; i < activations && !done(); ++i) {
      ++next_node_;
      activations_.push_back({allocate(site(i), step), next_node_ - 1});
      for (std::uint64_t b = 0; b < buffers / 2; ++b) buffer((i + 1) << 20 | b, step);
    }
  }

  void backward(std::uint64_t step, std::uint64_t buffers) {
    context_ = {};
    context_.thread = kBackwardThread;
    for (; !activations_.empty() && !done(); activations_.pop_back()) {
      context_.node_sequence = activations_.back().node;
      context_.node_type = static_cast<std::uint16_t>(1 + context_.node_sequence % kNodeTypes);
      const std::uint64_t i = activations_.size();
      for (std::uint64_t b = buffers / 2; b < buffers; ++b) buffer(i << 20 | b, step);
      free(activations_.back().owned);
    }
    context_ = {};
  }

  void grow(std::uint64_t blocks) {
    while (lasting_.size() < blocks && !done()) lasting_.push_back(allocate(site(lasting_.size() << 40), 0));
  }

  // Replaces blocks of any age, which fragments a device over time.
  void replace(std::uint64_t step, std::uint64_t blocks) {
    for (std::uint64_t i = 0; i < blocks && !lasting_.empty() && !done(); ++i) {
      const std::uint64_t number = mix(options_.seed ^ step << 24, i) % lasting_.size();
      const Owned made = allocate(site(number << 40 | step), step);
      free(lasting_[number]);
      lasting_[number] = made;
    }
  }

  void empty_cache() {
    push(EventKind::kEmptyCache, 0, 0, location(0, 0));
    for (int device = 0; device < kDevices; ++device) {
      complete_waiting(device, 0);
      devices_[device].release_cached();
    }
  }

  void position(std::uint64_t step) {
    maker_.advance(2'000'000);
    push(EventKind::kStep, 0, step, 0);
  }

  // The allocator state that a recording writes when it stops, for checks of the replay.
  void write_state() {
    context_ = {};
    for (int device = 0; device < kDevices; ++device) {
      const NativeModel& model = devices_[device];
      push(EventKind::kSnapshot, 0, 0, location(0, 0));
      std::vector<Event> state;
      for (const auto& [address, segment] : model.segments()) {
        const NativeModel::Block& first = model.block(segment.first);
        Event event{};
        event.location = location(device, first.stream);
        event.kind = EventKind::kStateSegment;
        event.address = address;
        event.size = segment.size;
        StateSegmentFields(event).flags = first.large ? kLargeSegment : 0;
        state.push_back(event);
        event.kind = EventKind::kStateBlock;
        for (BlockId id = segment.first; id != kNoBlock; id = model.block(id).after) {
          const NativeModel::Block& block = model.block(id);
          event.address = block.address;
          event.size = block.size;
          StateBlockFields(event).requested = block.requested;
          StateBlockFields(event).state = block.state;
          state.push_back(event);
        }
      }
      Event event{};
      event.kind = EventKind::kAllocatorState;
      event.location = location(device, 0);
      AllocatorStateFields(event).entries = state.size();
      maker_.push(event);
      for (const Event& each : state) maker_.push(each);
    }
  }

  void define_names() {
    Bytes record;
    for (int device = 0; device < kDevices; ++device) {
      for (int stream = 0; stream < kStreams; ++stream) {
        put_location(record, location(device, stream),
                     {kCudaType, device, stream ? 0x5500u + 16u * unsigned(stream) : 0, 0, 0});
      }
      put_device(record, {kCudaType, device, std::uint64_t{1} << 43, "Made-up GPU", "", ""});
    }
    put_thread(record, kMainThread, {1001, 1, "python", "MainThread"});
    put_thread_name(record, kMainThread, "MainThread");
    put_thread(record, kBackwardThread, {1002, 2, "pt_autograd_0", ""});
    for (std::uint32_t type = 1; type <= kNodeTypes; ++type) {
      put_node_type(record, type, {false, "MadeUpBackward" + std::to_string(type)});
    }
    maker_.define(record);
    settings_ = maker_.stacks().string_id(kSettings);
  }

  // A tree that branches at six of its levels: stacks share their outer frames, as in a real program. Every third frame
  // belongs to a library.
  void define_stacks() {
    StackTable& table = maker_.stacks();
    std::vector<std::uint32_t> codes;
    for (std::uint64_t number = 0; number < options_.codes; ++number) {
      const std::string file =
          number % 3 == 0 ? "/usr/lib/python3/site-packages/torch/module_" + std::to_string(number / 30) + ".py"
                          : "/home/user/model_" + std::to_string(number / 20) + ".py";
      const std::string name = "function_" + std::to_string(number);
      codes.push_back(table.add_code({name, "Module." + name, file, static_cast<std::int32_t>(10 + 40 * (number % 20)),
                                      LineTableKind::kNone, ""}));
    }
    const auto branches = static_cast<std::uint64_t>(std::ceil(std::pow(options_.stacks, 1 / 6.0)));
    const std::uint64_t every = std::max<std::uint64_t>(options_.depth / 6, 1);
    for (std::uint64_t number = 0; number < options_.stacks; ++number) {
      std::uint64_t digits = number, path = 0;
      std::uint32_t frame = 0;
      for (std::uint64_t depth = 0; depth < options_.depth; ++depth) {
        if (depth % every == every - 1) {
          path = mix(path, digits % branches + 1);
          digits /= branches;
        }
        const std::uint64_t hash = mix(path, depth << 32);
        frame = table.frame_id(frame, codes[hash % codes.size()], static_cast<std::uint32_t>(2 * (hash >> 32 & 0xff)));
      }
      stacks_.push_back(frame);
      if (number % 4096 == 0) maker_.write_definitions();
    }
    maker_.write_definitions();
  }

  struct Activation {
    Owned owned;
    std::uint64_t node;
  };
  static constexpr std::uint32_t kNodeTypes = 8;

  const Options& options_;
  TraceMaker& maker_;
  std::vector<NativeModel> devices_;
  std::vector<std::uint32_t> stacks_;
  std::uint32_t settings_ = 0;
  bool configured_[kDevices] = {};
  bool made_segment_ = false;
  Context context_;
  std::uint64_t next_node_ = 0, buffer_ = 0, live_peak_ = 0;
  Owned buffers_[8];
  std::deque<BlockId> waiting_[kDevices];
  std::vector<Activation> activations_;
  std::vector<Owned> lasting_;
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; i += 2) {
    const std::string name = arguments[i];
    if (i + 1 == count) throw std::runtime_error(name + " needs a value");
    if (name == "--out") {
      options.out = arguments[i + 1];
      continue;
    }
    std::uint64_t* number = name == "--events"   ? &options.events
                            : name == "--live"   ? &options.live
                            : name == "--steps"  ? &options.steps
                            : name == "--stacks" ? &options.stacks
                            : name == "--depth"  ? &options.depth
                            : name == "--codes"  ? &options.codes
                            : name == "--seed"   ? &options.seed
                                                 : nullptr;
    if (!number) throw std::runtime_error("unknown option " + name);
    *number = std::stoull(arguments[i + 1]);
  }
  if (options.out.empty()) throw std::runtime_error("--out FILE is needed");
  if (options.live == 0) options.live = std::min<std::uint64_t>(1'000'000, options.events / 20);
  if (options.steps == 0) options.steps = std::max<std::uint64_t>(options.events / 500'000, 10);
  return options;
}

int make(const Options& options) {
  std::uint8_t session_id[16] = {};
  std::memcpy(session_id, &options.seed, sizeof options.seed);
  std::memcpy(session_id + 8, &options.events, sizeof options.events);
  const std::string header =
      R"({"program": "/home/user/train.py", "arguments": [], "working_directory": "/home/user", "host": "made-up", )"
      R"("process": 4711, "rank": "0", "started": 0, "python": "3.11.0", "platform": "Linux", "torch": "2.11.0", )"
      R"("cuda": "13.0", "devices": ["cuda"], "options": {}, "trace": "", "spool": "", "library_prefixes": )"
      R"(["/usr/lib/python3/"], "prefix": "/usr", "environment": {}})";
  TraceMaker maker(options.out, session_id, header);
  Training training(options, maker);
  training.run();
  maker.finish(R"({"reason": "disable"})");
  std::uint64_t reserved = 0, segments = 0;
  for (const NativeModel& device : training.devices()) {
    reserved += device.reserved();
    segments += device.segments_made();
  }
  std::printf("{\"events\": %llu, \"bytes\": %llu, \"live_peak\": %llu, \"reserved\": %llu, \"segments_made\": %llu}\n",
              static_cast<unsigned long long>(maker.sequence()), static_cast<unsigned long long>(maker.bytes()),
              static_cast<unsigned long long>(training.live_peak()), static_cast<unsigned long long>(reserved),
              static_cast<unsigned long long>(segments));
  return 0;
}

}  // namespace
}  // namespace alloctrace::bench

int main(int count, char** arguments) {
  try {
    return alloctrace::bench::make(alloctrace::bench::parse(count, arguments));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "replay_trace: %s\n", error.what());
    return 1;
  }
}
