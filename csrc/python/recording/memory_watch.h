// Samples what the driver and the operating system say of memory, on a thread of its own, and puts what changed into
// the trace: what no allocator of torch's knows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace alloctrace::python {

struct WatchedDevice {
  std::int32_t type, index;
  std::string uuid, pci_address;
};

// Ten times a second from now on; first of all now. One at a time.
void start_memory_watch();
// A device to ask the driver for, too. The same again changes nothing. May be called from a hook.
void watch_device(const WatchedDevice& device);
// After it has returned nothing is sampled any more; what there is to sample is sampled once more before.
void stop_memory_watch();

// Around fork(). The child has the thread's objects, but not the thread.
void lock_memory_watch();
void unlock_memory_watch();
void forget_memory_watch_in_child();

}  // namespace alloctrace::python
