// Thread that samples memory use and records changes: of devices as the driver reports it, of this process as the
// operating system does, and of torch's pool of pinned memory. It also records the processes that the program starts.
//
// A call to the driver may hang. The end of a session and fork wait for a call until it has lasted 100 ms (1 s if it
// loads the library). Then the end of a session abandons the thread with its objects and ignores its late result.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace alloctrace::python {

struct WatchedDevice {
  std::int32_t type, index;
  std::string uuid, pci_address;
};

// Record samples in the session with this number, ten times a second. Throws std::system_error without a thread.
void start_memory_watch(std::uint64_t session);
// Sample this device as soon as it is in use. A second call for a device does nothing.
void watch_device(const WatchedDevice& device);
// Sample torch's pool of pinned memory, once a second. `read` returns the bytes that the pool holds and takes its
// locks, which a thread may hold for a call to the driver: treated like a driver call. Called without the GIL.
void watch_pinned_pool(std::function<std::uint64_t()> read);
// Record a last sample and end the thread. Does nothing if none runs.
void stop_memory_watch();

// True for the CUDA devices that this process uses. Others are not sampled, since waking them may be slow or hang.
inline std::array<std::atomic<bool>, 128> devices_in_use{};
// May be called from a hook: takes no lock.
inline void note_device_use(std::int32_t index) noexcept {
  const auto device = static_cast<std::size_t>(index);
  if (device < devices_in_use.size() && !devices_in_use[device].load(std::memory_order_relaxed))
    devices_in_use[device].store(true, std::memory_order_relaxed);
}

// Fork handlers: in a child that is forked during a driver call, the driver's locks would stay locked for ever.
void lock_memory_watch();
void unlock_memory_watch();
void forget_memory_watch_in_child();

}  // namespace alloctrace::python
