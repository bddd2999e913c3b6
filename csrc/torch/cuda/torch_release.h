// Differences between the releases of torch that this project compiles against (2.9 to 2.15; tools/check_releases).
#pragma once

#include <torch/version.h>

#define ALLOCTRACE_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// Without this, expandable_segments() of 2.9 warns and returns false, though torch on Linux has the driver's functions.
#if !ALLOCTRACE_TORCH_AT_LEAST(2, 10) && !defined(PYTORCH_C10_DRIVER_API_SUPPORTED)
#define PYTORCH_C10_DRIVER_API_SUPPORTED
#endif

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../../core/base/clock.h"

namespace alloctrace::torch_side {

namespace native = c10::cuda::CUDACachingAllocator;

using native::TraceEntry;

// Return the entry's time: on x86-64 torch's stamp, from the counter that clock.h reads, if that counter is steady.
inline std::uint64_t entry_time(const TraceEntry& entry) {
#if defined(__x86_64__)
  if (counter_is_steady) [[likely]]
    return static_cast<std::uint64_t>(entry.time_.approx_t_);
#else
  static_cast<void>(entry);
#endif
  return read_counter();
}

// Read segments and blocks without torch's history, which would take hundreds of milliseconds.
inline native::SnapshotInfo read_snapshot(native::CUDAAllocator& allocator) {
#if ALLOCTRACE_TORCH_AT_LEAST(2, 11)
  return allocator.snapshot({0, 0}, false);
#else
  return allocator.snapshot({0, 0});
#endif
}

// Return the address of a workspace in torch's maps, which from 2.15 on also contain its size.
inline std::uint64_t address_of_workspace(const c10::DataPtr& workspace) {
  return reinterpret_cast<std::uint64_t>(workspace.get());
}
inline std::uint64_t address_of_workspace(const std::pair<c10::DataPtr, std::size_t>& workspace) {
  return address_of_workspace(workspace.first);
}

// Return the free bytes of `device`, the current device.
inline std::size_t free_bytes_of(native::CUDAAllocator& allocator, c10::DeviceIndex device) {
#if ALLOCTRACE_TORCH_AT_LEAST(2, 10)
  return allocator.getMemoryInfo(device).first;
#else
  static_cast<void>(allocator), static_cast<void>(device);
  std::size_t free_bytes = 0, total_bytes = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return free_bytes;
#endif
}

// Settings shared by the caching allocators of all device types, if the release has such a class.
#if ALLOCTRACE_TORCH_AT_LEAST(2, 10)
using SharedConfig = c10::CachingAllocator::AcceleratorAllocatorConfig;
#else
using SharedConfig = native::CUDAAllocatorConfig;
#endif

// Avoid CUDAAllocatorConfig's from 2.10 on: it returns false (see above), and waits for the GIL under a device's lock.
inline bool expandable_segments() {
#if ALLOCTRACE_TORCH_AT_LEAST(2, 10)
  return SharedConfig::use_expandable_segments();
#else
  return SharedConfig::expandable_segments();
#endif
}

constexpr bool kHasLargeSegmentSize = ALLOCTRACE_TORCH_AT_LEAST(2, 11);
inline std::size_t large_segment_size() {
#if ALLOCTRACE_TORCH_AT_LEAST(2, 11)
  return SharedConfig::large_segment_size();
#else
  return 0;
#endif
}

// Return the bytes that the pool holds, in use or cached: reserved_bytes where the release has it, whose
// allocated_bytes are those in use.
template <typename Stats>
std::int64_t pinned_pool_bytes(const Stats& stats) {
  if constexpr (requires { stats.reserved_bytes; })
    return stats.reserved_bytes.current;
  else
    return stats.allocated_bytes.current;
}

// Base class that forwards the virtual methods of CUDAAllocator that some releases lack or declare differently.
// `Front`, the derived class, forwards the others, and has next(), allocate_recorded() and the callbacks on_*().
template <typename Front>
class CUDAAllocatorOfRelease : public native::CUDAAllocator {
 public:
#if ALLOCTRACE_TORCH_AT_LEAST(2, 10)
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return next().getMemoryInfo(device);
  }
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return next().getExpandableSegmentSizes(device);
  }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    next().setNoSplit(device, pool);
    front().on_no_split_set(device, pool);
  }
  void setUserMetadata(const std::string& metadata) override { next().setUserMetadata(metadata); }
  std::string getUserMetadata() override { return next().getUserMetadata(); }
#endif

#if ALLOCTRACE_TORCH_AT_LEAST(2, 11)
  native::SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override {
    return next().snapshot(pool, include_traces);
  }
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<native::CUDAAllocator> allocator) override {
    front().on_pool_created(device, pool, allocator != nullptr);
    next().createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use_on_oom) override {
    next().setUseOnOOM(device, pool, use_on_oom);
    front().on_use_on_oom_set(device, pool, use_on_oom);
  }
  void recordHistory(bool enabled, native::CreateContextFn context, std::size_t entries, native::RecordContext when,
                     bool clear, const std::vector<std::string>& skip_actions) override {
    next().recordHistory(enabled, context, entries, when, clear, skip_actions);
  }
#else
  native::SnapshotInfo snapshot(c10::MempoolId_t pool) override { return next().snapshot(pool); }
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool, native::CUDAAllocator* allocator) override {
    front().on_pool_created(device, pool, allocator != nullptr);
    next().createOrIncrefPool(device, pool, allocator);
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    next().setUseOnOOM(device, pool);
    front().on_use_on_oom_set(device, pool, true);
  }
  void recordHistory(bool enabled, native::CreateContextFn context, std::size_t entries, native::RecordContext when,
                     bool clear) override {
    next().recordHistory(enabled, context, entries, when, clear);
  }
#endif

#if ALLOCTRACE_TORCH_AT_LEAST(2, 12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* address) override {
    return next().getContextForPointer(address);
  }
  void attachOomRejectionObserver(native::OomRejectionObserver observer) override {
    next().attachOomRejectionObserver(std::move(observer));
  }
#endif

#if ALLOCTRACE_TORCH_AT_LEAST(2, 13)
  c10::DataPtr allocateWithAddress(std::size_t size, void* address) override {
    return front().allocate_recorded(size, [&] { return next().allocateWithAddress(size, address); });
  }
  void markCaptureBegin(c10::DeviceIndex device) override {
    next().markCaptureBegin(device);
    front().on_capture_marked(device, true);
  }
  void markCaptureEnd(c10::DeviceIndex device) override {
    front().on_capture_marked(device, false);
    next().markCaptureEnd(device);
  }
#endif

#if ALLOCTRACE_TORCH_AT_LEAST(2, 14)
  bool supportsUserMetadata() override { return next().supportsUserMetadata(); }
  void annotateMemory(const void* address, const std::string& metadata) override {
    next().annotateMemory(address, metadata);
  }
#endif

 private:
  Front& front() { return static_cast<Front&>(*this); }
  native::CUDAAllocator& next() { return front().next(); }
};

// Base class that does the same for HostAllocator.
template <typename Front>
class HostAllocatorOfRelease : public at::HostAllocator {
 public:
#if ALLOCTRACE_TORCH_AT_LEAST(2, 11)
  void begin_allocate_to_pool(c10::MempoolId_t pool, std::function<bool(c10::Stream)> filter) override {
    next().begin_allocate_to_pool(pool, std::move(filter));
  }
  void end_allocate_to_pool(c10::MempoolId_t pool) override { next().end_allocate_to_pool(pool); }
  void release_pool(c10::MempoolId_t pool) override { next().release_pool(pool); }
#endif

#if ALLOCTRACE_TORCH_AT_LEAST(2, 14)
  void record_history(bool enabled, native::CreateContextFn context, std::size_t entries, native::RecordContext when,
                      bool clear) override {
    next().record_history(enabled, context, entries, when, clear);
  }
  bool is_history_enabled() const override { return next().is_history_enabled(); }
  std::vector<at::HostSegmentInfo> get_segments() override { return next().get_segments(); }
  std::vector<TraceEntry> get_traces() override { return next().get_traces(); }
  void record_external_register(void* address, std::size_t size) override {
    next().record_external_register(address, size);
  }
  void record_external_unregister(void* address) override { next().record_external_unregister(address); }
#endif

 private:
  at::HostAllocator& next() const { return *static_cast<const Front*>(this)->upstream(); }
};

}  // namespace alloctrace::torch_side
