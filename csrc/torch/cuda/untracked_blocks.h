// Recording for CUDA allocators without a trace tracker: cudaMallocAsync, pluggable allocators such as RMM's, and
// torch's own without caching.
//
// Contract:
// - Any thread may call these functions. None of our locks is held during a call of the upstream.
// - An allocation is recorded after the upstream's call, a free before. So events of one address are in true order;
//   those of different addresses on different threads may not be.
// - A block is in the table before it is recorded, and leaves it once, at its free. Blocks are stored also while
//   nothing is recorded: each needs its deleter.
// - Without memory for the table's entry, neither allocation nor free is recorded, and a fault is counted.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>

#include "torch_release.h"

namespace alloctrace::torch_side {

// True while the allocator in front calls its upstream, whose functions (pluggable_pair.cpp) must not record again.
extern constinit thread_local bool front_is_recording;

// Allocate a block and record it. `allocate` calls the upstream.
c10::DataPtr allocate_untracked(native::CUDAAllocator& upstream, std::size_t size,
                                c10::function_ref<c10::DataPtr()> allocate);
void* raw_allocate_untracked(native::CUDAAllocator& upstream, std::size_t size);
void* raw_allocate_untracked(native::CUDAAllocator& upstream, std::size_t size, cudaStream_t stream);

// Free a block through the upstream that allocated it, or, if the block is unknown, with the fallback deleter.
void free_untracked(void* address);
void set_fallback_deleter(c10::DeleterFnPtr deleter);

// Call upstream.recordStream(), also for blocks with our deleter: upstreams ignore blocks without their own deleter.
void record_stream_untracked(native::CUDAAllocator& upstream, const c10::DataPtr& block, c10::cuda::CUDAStream stream);

}  // namespace alloctrace::torch_side
