// Blocks of CUDA allocators that have no trace tracker (cudaMallocAsync, pluggable allocators such as RMM's, and
// torch's own with caching switched off): the allocator in front records them itself, allocations after they happen
// and frees before.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>

#include "torch_release.h"

namespace alloctrace::torch_side {

// True while the allocator in front is inside a call of the upstream: what the upstream's own functions could record
// then (pluggable_pair.cpp) is recorded already.
extern constinit thread_local bool front_records;

// `allocate` calls the upstream.
c10::DataPtr allocate_untracked(native::CUDAAllocator& upstream, std::size_t size,
                                c10::function_ref<c10::DataPtr()> allocate);
void* raw_allocate_untracked(native::CUDAAllocator& upstream, std::size_t size);
void* raw_allocate_untracked(native::CUDAAllocator& upstream, std::size_t size, cudaStream_t stream);

// Frees what one of the above has made, through the upstream that made it. Unknown addresses go to the deleter that was
// set last.
void free_untracked(void* address);
void set_deleter_of_unknown(c10::DeleterFnPtr deleter);

// upstream.recordStream(), for blocks with our deleter too: upstreams ignore blocks that do not have theirs.
void record_stream_untracked(native::CUDAAllocator& upstream, const c10::DataPtr& block, c10::cuda::CUDAStream stream);

}  // namespace alloctrace::torch_side
