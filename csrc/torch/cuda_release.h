// What differs between the releases of torch that this project compiles against, in one place.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/version.h>

#include <cstdint>

#include "../core/clock.h"

#define ALLOCTRACE_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace alloctrace::torch_side {

namespace native = c10::cuda::CUDACachingAllocator;

using native::TraceEntry;

// On these processors torch stamps its entries with the counter that clock.h reads.
inline std::uint64_t entry_time(const TraceEntry& entry) {
#if defined(__x86_64__)
  return static_cast<std::uint64_t>(entry.time_.approx_t_);
#else
  static_cast<void>(entry);
  return read_counter();
#endif
}

// The allocator's segments and blocks, without the history that torch keeps when asked to (hundreds of milliseconds).
inline native::SnapshotInfo take_snapshot(native::CUDAAllocator& allocator) {
#if ALLOCTRACE_TORCH_AT_LEAST(2, 11)
  return allocator.snapshot({0, 0}, false);
#else
  return allocator.snapshot({0, 0});
#endif
}

}  // namespace alloctrace::torch_side
