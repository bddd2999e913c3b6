#include "memory_watch.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "../../core/base/clock.h"
#include "../../core/base/thread.h"
#include "../../core/format/event_fields.h"
#include "../../system/child_processes.h"
#include "../../system/nvml.h"
#include "../../system/process_memory.h"
#include "session.h"

namespace alloctrace::python {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr unsigned kSamplesPerPinnedSample = 10;
// Duration after which a call to the driver counts as hung; loading and starting its library takes longer.
constexpr auto kCallTimeout = std::chrono::milliseconds(100);
constexpr auto kOpenTimeout = std::chrono::seconds(1);

// Set if a thread was abandoned in a call, or a child was forked during one: another call would hang too.
std::atomic<bool> driver_hangs{false};

class MemoryWatch {
 public:
  explicit MemoryWatch(std::uint64_t session) : session_(session) {}

  // The thread shares ownership: it may outlive the session in a hung call.
  static std::shared_ptr<MemoryWatch> start(std::uint64_t session) {
    auto watch = std::make_shared<MemoryWatch>(session);
    start_thread([watch] { watch->run(); }).detach();
    return watch;
  }

  void add(const WatchedDevice& device) {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const WatchedDevice& existing : devices_) {
      if (existing.index == device.index) return;
    }
    devices_.push_back(device);
  }

  void watch_pinned_pool(std::function<std::uint64_t()> read) {
    const std::lock_guard<std::mutex> guard(mutex_);
    new_read_pinned_ = std::move(read);
  }

  void stop() {
    std::unique_lock<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    if (wait_unless_hung(lock, [this] { return ended_; })) return;
    is_abandoned_ = true;
    driver_hangs.store(calls_driver_);
  }

  // Keep the thread from starting a driver call until unlock(). Does not wait for a hung call.
  void lock() {
    std::unique_lock<std::mutex> lock(mutex_);
    wait_unless_hung(lock, [this] { return !call_began_; });
    lock.release();
  }
  void unlock() { mutex_.unlock(); }
  void forget_in_child() {
    if (call_began_ && calls_driver_) driver_hangs.store(true);
  }

 private:
  struct LastSample {
    Event event{};
    bool is_repeated = false;
  };
  struct Watched {
    WatchedDevice device;
    std::optional<Nvml::Device> handle;  // set by the first search
    LastSample last{};
  };

  // Wait until `condition` holds; return false as soon as a driver call hangs.
  template <typename Condition>
  bool wait_unless_hung(std::unique_lock<std::mutex>& lock, Condition condition) {
    while (!condition()) {
      if (!call_began_) {
        changed_.wait(lock);
      } else if (Clock::now() - *call_began_ < timeout_) {
        changed_.wait_until(lock, *call_began_ + timeout_);
      } else {
        return false;
      }
    }
    return true;
  }

  // Scope of a driver call; false if the call must not be made.
  class DriverCall {
   public:
    DriverCall(MemoryWatch& watch, Clock::duration timeout, bool calls_driver = true) : watch_(watch) {
      const std::lock_guard<std::mutex> guard(watch_.mutex_);
      if (watch_.is_abandoned_ || driver_hangs.load()) return;
      watch_.call_began_ = Clock::now();
      watch_.timeout_ = timeout;
      watch_.calls_driver_ = calls_driver;
      allowed_ = true;
    }
    ~DriverCall() {
      const std::lock_guard<std::mutex> guard(watch_.mutex_);
      watch_.call_began_.reset();
      watch_.changed_.notify_all();
    }
    DriverCall(const DriverCall&) = delete;
    DriverCall& operator=(const DriverCall&) = delete;
    explicit operator bool() const { return allowed_; }

   private:
    MemoryWatch& watch_;
    bool allowed_ = false;
  };

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (bool last = false; !last;) {
      last = stopping_;
      try {
        while (watched_.size() < devices_.size()) watched_.push_back({devices_[watched_.size()], {}, {}});
        if (new_read_pinned_) read_pinned_ = std::exchange(new_read_pinned_, nullptr);
        lock.unlock();
        sample(last);
        record_children(last);
      } catch (...) {  // out of memory: this sample is missing
      }
      if (!lock.owns_lock()) lock.lock();
      if (is_abandoned_) break;
      if (!last) changed_.wait_for(lock, kInterval, [this] { return stopping_; });
    }
    ended_ = true;
    if (is_abandoned_) driver_hangs.store(false);
    changed_.notify_all();
  }

  void sample(bool last) {
    Event host{};
    const ResidentMemory resident = resident_memory();
    MemoryFields(host).used = resident.total;
    MemoryFields(host).total = machine_bytes();
    MemoryFields(host).by_this_process = resident.anonymous;
    record_change(host, {0, 0, 0, 0, 0}, last_host_);
    if (samples_++ % kSamplesPerPinnedSample == 0 || last) sample_pinned_pool();
    for (Watched& watched : watched_) {
      if (!devices_in_use[static_cast<std::size_t>(watched.device.index)].load(std::memory_order_relaxed)) continue;
      const std::optional<DriverMemory> memory = query_driver(watched);
      if (!memory) continue;
      Event event{};
      const MemoryFields fields(event);
      fields.used = memory->used;
      fields.total = memory->total;
      fields.by_this_process = memory->by_this_process.value_or(kUnknownBytes);
      fields.by_others = memory->by_others.value_or(kUnknownBytes);
      record_change(event, {watched.device.type, watched.device.index, 0, 0, 0}, watched.last);
    }
  }

  void sample_pinned_pool() {
    if (!read_pinned_) return;
    Event event{};
    {
      const DriverCall call(*this, kCallTimeout);
      if (!call) return;
      // As in query_driver(), for torch's library.
      [[maybe_unused]] static const int registered = std::atexit(stop_memory_watch);
      MemoryFields(event).used = read_pinned_();
    }
    if (MemoryFields(event).used == 0 && last_pinned_.event.kind != EventKind::kMemory) return;  // never used
    record_change(event, {kPinnedMemory, 0, 0, 0, 0}, last_pinned_);
  }

  void record_children(bool is_last) {
    std::vector<ChildProcess> new_children;
    {
      // Reading a command line waits for a lock of its process, and so may hang like a driver.
      const DriverCall call(*this, kCallTimeout, false);
      if (!call) return;
      new_children = children_.find_new(is_last);
    }
    HookScope scope;
    if (new_children.empty() || !scope || scope.session().number != session_) return;
    Recorder& recorder = scope.session().recorder;
    for (const ChildProcess& child : new_children) {
      recorder.add_child({recorder.next_event(), child.process_id, child.parent_id, child.start_time, child.command});
    }
  }

  const Nvml* open_driver() {
    const DriverCall call(*this, kOpenTimeout);
    return call ? Nvml::open() : nullptr;
  }

  std::optional<DriverMemory> query_driver(Watched& watched) {
    const Nvml* const nvml = open_driver();
    if (!nvml) return {};
    const DriverCall call(*this, kCallTimeout);
    if (!call) return {};
    // Registered after the library's destructors, so run before them: no driver call during their teardown.
    [[maybe_unused]] static const int registered = std::atexit(stop_memory_watch);
    if (!watched.handle) watched.handle = nvml->find(watched.device.uuid, watched.device.pci_address);
    return *watched.handle ? nvml->memory(*watched.handle) : std::nullopt;
  }

  // Record each change in two samples: the first may have been taken before torch's own event of the same change.
  void record_change(Event& event, const Location& where, LastSample& last) const {
    event.kind = EventKind::kMemory;
    const MemoryFields now(event), before(last.event);
    const bool changed = last.event.kind != EventKind::kMemory || now.used != before.used ||
                         now.total != before.total || now.by_this_process != before.by_this_process ||
                         now.by_others != before.by_others;
    if (!changed && last.is_repeated) return;
    // Entered after the driver call: a session cannot end during this scope, and the call may hang.
    HookScope scope;
    if (!scope || scope.session().number != session_) return;
    event.time = read_counter();
    event.location = scope.session().recorder.location_id(where);
    if (scope.session().recorder.push(event)) last = {event, !changed};
  }

  const std::uint64_t session_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false, ended_ = false, is_abandoned_ = false;
  std::optional<Clock::time_point> call_began_;
  Clock::duration timeout_ = kCallTimeout;
  bool calls_driver_ = false;  // the call in progress
  std::vector<WatchedDevice> devices_;
  std::function<std::uint64_t()> new_read_pinned_;
  // Used by the thread only:
  std::vector<Watched> watched_;
  std::function<std::uint64_t()> read_pinned_;
  unsigned samples_ = 0;
  LastSample last_host_{}, last_pinned_{};
  ChildProcesses children_;
};

// Never destroyed: hooks and the thread still run while the process exits.
struct Slot {
  std::mutex mutex;
  std::shared_ptr<MemoryWatch> watch;
};
Slot& slot() {
  static Slot* const instance = std::make_unique<Slot>().release();
  return *instance;
}

std::shared_ptr<MemoryWatch> current_watch() {
  const std::lock_guard<std::mutex> guard(slot().mutex);
  return slot().watch;
}

}  // namespace

void start_memory_watch(std::uint64_t session) {
  for (std::atomic<bool>& device : devices_in_use) device.store(false, std::memory_order_relaxed);
  auto started = MemoryWatch::start(session);
  const std::lock_guard<std::mutex> guard(slot().mutex);
  slot().watch = std::move(started);
}

void watch_device(const WatchedDevice& device) {
  if (static_cast<std::size_t>(device.index) >= devices_in_use.size()) return;
  if (const auto watch = current_watch()) watch->add(device);
}

void watch_pinned_pool(std::function<std::uint64_t()> read) {
  if (const auto watch = current_watch()) watch->watch_pinned_pool(std::move(read));
}

void stop_memory_watch() {
  const auto watch = current_watch();
  if (!watch) return;
  watch->stop();  // stays in the slot until it has ended: fork() must still block its driver calls
  const std::lock_guard<std::mutex> guard(slot().mutex);
  slot().watch.reset();
}

void lock_memory_watch() {
  slot().mutex.lock();
  if (slot().watch) slot().watch->lock();
}
void unlock_memory_watch() {
  if (slot().watch) slot().watch->unlock();
  slot().mutex.unlock();
}
// The child leaks the thread's objects, since the thread that would release them does not exist there.
void forget_memory_watch_in_child() {
  if (slot().watch) slot().watch->forget_in_child();
  slot().watch.reset();
}

}  // namespace alloctrace::python
