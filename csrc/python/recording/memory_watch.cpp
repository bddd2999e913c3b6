#include "memory_watch.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "../../core/base/clock.h"
#include "../../core/base/thread.h"
#include "../../core/format/event.h"
#include "../../system/nvml.h"
#include "../../system/process_memory.h"
#include "session.h"

namespace alloctrace::python {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr std::uint64_t kNotTold = ~std::uint64_t{0};

// Held while NVML is at work: a child that is forked in the middle would find its locks taken for ever.
std::mutex sampling_mutex;

class MemoryWatch {
 public:
  MemoryWatch() : thread_(start_thread([this] { run(); })) {}
  ~MemoryWatch() {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void add(const WatchedDevice& device) {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const WatchedDevice& known : added_) {
      if (known.type == device.type && known.index == device.index) return;
    }
    added_.push_back(device);
    wake_.notify_all();  // the first sample now: programs may be short
  }

 private:
  struct Last {
    Event event{};
    bool is_told_twice = false;
  };
  struct Watched {
    WatchedDevice device;
    Nvml::Device handle;
    Last last{};
  };

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      const bool last = stopping_;
      const std::vector<WatchedDevice> added(added_.begin() + static_cast<std::ptrdiff_t>(taken_), added_.end());
      taken_ = added_.size();
      lock.unlock();
      try {
        const std::lock_guard<std::mutex> no_fork(sampling_mutex);
        for (const WatchedDevice& device : added) find(device);
        sample();
      } catch (...) {  // of memory only: this sample is missing
      }
      lock.lock();
      if (last) return;
      wake_.wait_for(lock, kInterval, [&] { return stopping_ || taken_ < added_.size(); });
    }
  }

  void find(const WatchedDevice& device) {
    if (!nvml_) nvml_ = Nvml::open();
    if (!nvml_) return;
    if (const Nvml::Device handle = nvml_->find(device.uuid, device.pci_address))
      devices_.push_back({device, handle, {}});
  }

  void sample() {
    HookScope scope;
    if (!scope) return;
    Recorder& recorder = scope.session().recorder;
    Event host{};
    host.address = resident_bytes();
    host.size = machine_bytes();
    host.location = recorder.location({0, 0, 0, 0, 0});
    push_if_changed(recorder, host, last_host_);
    for (Watched& watched : devices_) {
      const std::optional<DeviceMemory> memory = nvml_->memory(watched.handle);
      if (!memory) continue;
      Event event{};
      event.address = memory->used;
      event.size = memory->total;
      event.sequence = memory->by_this_process.value_or(kNotTold);
      event.node_sequence = memory->by_others.value_or(kNotTold);
      event.location = recorder.location({watched.device.type, watched.device.index, 0, 0, 0});
      push_if_changed(recorder, event, watched.last);
    }
  }

  // A change is told twice, by this sample and the next: the first may have been taken in the middle of a call that
  // takes memory from the driver, before torch's own event of it.
  static void push_if_changed(Recorder& recorder, Event& event, Last& last) {
    event.kind = EventKind::kMemory;
    const bool changed = last.event.kind != EventKind::kMemory || event.address != last.event.address ||
                         event.size != last.event.size || event.sequence != last.event.sequence ||
                         event.node_sequence != last.event.node_sequence;
    if (!changed && last.is_told_twice) return;
    event.time = read_counter();
    if (recorder.push(event)) last = {event, !changed};
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<WatchedDevice> added_;
  std::size_t taken_ = 0;  // of added_, by the thread
  // The thread's own:
  std::unique_ptr<Nvml> nvml_;
  std::vector<Watched> devices_;
  Last last_host_{};
  std::thread thread_;  // last: it uses the others
};

std::mutex slot_mutex;  // of `watch`
std::unique_ptr<MemoryWatch> watch;

}  // namespace

void start_memory_watch() {
  auto made = std::make_unique<MemoryWatch>();
  const std::lock_guard<std::mutex> guard(slot_mutex);
  watch = std::move(made);
}

void watch_device(const WatchedDevice& device) {
  const std::lock_guard<std::mutex> guard(slot_mutex);
  if (watch) watch->add(device);
}

void stop_memory_watch() {
  std::unique_ptr<MemoryWatch> ending;
  {
    const std::lock_guard<std::mutex> guard(slot_mutex);
    ending = std::move(watch);
  }
}

void lock_memory_watch() {
  slot_mutex.lock();
  sampling_mutex.lock();
}
void unlock_memory_watch() {
  sampling_mutex.unlock();
  slot_mutex.unlock();
}
void forget_memory_watch_in_child() { static_cast<void>(watch.release()); }

}  // namespace alloctrace::python
