// Samples what the driver and the operating system say of memory, on a thread of its own, and puts what changed into
// the trace: what no allocator of torch's knows.
//
// A call to the driver may hang. Whoever has to wait for the thread (the end of a session, fork) gives up on a call
// that has lasted 100 ms; the thread is then left behind with all it uses, and its late answer is ignored.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace alloctrace::python {

struct WatchedDevice {
  std::int32_t type, index;
  std::string uuid, pci_address;
};

// Samples ten times a second from now on, into the session of this number. Throws std::system_error when no thread can
// be started.
void start_memory_watch(std::uint64_t session);
// A device to ask the driver about, once it is in use. The same again changes nothing.
void watch_device(const WatchedDevice& device);
// Samples once more, and ends. Does nothing when nothing is watched.
void stop_memory_watch();

// Whether this process uses a CUDA device: the driver is asked about no other, which may be slow to wake, or hang.
inline std::array<std::atomic<bool>, 128> devices_in_use{};
// May be called from a hook: takes no lock.
inline void note_device_use(std::int32_t index) noexcept {
  const auto device = static_cast<std::size_t>(index);
  if (device < devices_in_use.size() && !devices_in_use[device].load(std::memory_order_relaxed))
    devices_in_use[device].store(true, std::memory_order_relaxed);
}

// Around fork(): a child that is forked in the middle of a call would find the driver's locks taken for ever. The child
// has the thread's objects, but not the thread.
void lock_memory_watch();
void unlock_memory_watch();
void forget_memory_watch_in_child();

}  // namespace alloctrace::python
