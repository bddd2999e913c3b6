#include "untracked_blocks.h"

#include <atomic>
#include <memory>
#include <optional>

#include "../block_table.h"
#include "../record_event.h"
#include "tracker.h"

namespace alloctrace::torch_side {

constinit thread_local bool front_is_recording = false;

namespace {

class FrontRecordingScope {
 public:
  FrontRecordingScope() : before_(front_is_recording) { front_is_recording = true; }
  ~FrontRecordingScope() { front_is_recording = before_; }
  FrontRecordingScope(const FrontRecordingScope&) = delete;
  FrontRecordingScope& operator=(const FrontRecordingScope&) = delete;

 private:
  const bool before_;
};

BlockTable& untracked_blocks() {
  static BlockTable& table = BlockTable::create();
  return table;
}

std::atomic<c10::DeleterFnPtr> fallback_deleter{nullptr};

// Return false, and count a fault, if memory to store the block ran out: the block then keeps its deleter.
bool record_allocation(void* address, std::size_t size, c10::DeviceIndex device, const void* stream,
                       c10::DeleterFnPtr deleter) noexcept {
  const Location location{kCudaType, device, reinterpret_cast<std::uint64_t>(stream), 0, 0};
  if (!untracked_blocks().insert(address, {address, size, location, deleter})) {
    if (cuda_is_traced()) count_fault();
    return false;
  }
  if (cuda_is_traced()) record_cuda_call(EventKind::kAlloc, address, size, location);
  return true;
}

void record_out_of_memory(native::CUDAAllocator& upstream, std::size_t size) noexcept {
  if (!cuda_is_traced()) return;
  std::size_t free_bytes = 0;
  c10::DeviceIndex device = 0;
  try {
    device = c10::cuda::current_device();
    free_bytes = free_bytes_of(upstream, device);
  } catch (...) {  // free_bytes stays 0
  }
  record_cuda_oom(free_bytes, size, {kCudaType, device, 0, 0, 0});
}

// Record a null pointer, which a pluggable allocator may return instead of throwing.
void record_null(native::CUDAAllocator& upstream, std::size_t size) noexcept {
  if (size == 0) {
    count_empty_allocation();
  } else {
    record_out_of_memory(upstream, size);
  }
}

template <typename Allocate>
auto call_upstream(native::CUDAAllocator& upstream, std::size_t size, Allocate allocate) {
  const FrontRecordingScope recording;
  try {
    return allocate();
  } catch (const c10::OutOfMemoryError&) {
    record_out_of_memory(upstream, size);
    throw;
  } catch (const c10::AcceleratorError& error) {  // from cudaMalloc, called without a cache
    if (error.get_error_code() == cudaErrorMemoryAllocation) record_out_of_memory(upstream, size);
    throw;
  }
}

void* record_raw_allocation(native::CUDAAllocator& upstream, void* address, std::size_t size, cudaStream_t stream) {
  if (address == nullptr) {
    record_null(upstream, size);
  } else {
    record_allocation(address, size, c10::cuda::current_device(), stream, upstream.raw_deleter());
  }
  return address;
}

}  // namespace

c10::DataPtr allocate_untracked(native::CUDAAllocator& upstream, std::size_t size,
                                c10::function_ref<c10::DataPtr()> allocate) {
  c10::DataPtr data = call_upstream(upstream, size, allocate);
  if (data.get() == nullptr) {
    record_null(upstream, size);
    return data;
  }
  // free_untracked() gets only the context, which must be the address.
  if (data.get() != data.get_context()) return data;
  const c10::DeleterFnPtr deleter = data.get_deleter();
  const c10::DeviceIndex device = data.device().index();
  if (record_allocation(data.get(), size, device, c10::cuda::getCurrentCUDAStream(device).stream(), deleter)) {
    static_cast<void>(data.compare_exchange_deleter(deleter, &free_untracked));  // cannot fail: `deleter` was just read
  }
  return data;
}

void* raw_allocate_untracked(native::CUDAAllocator& upstream, std::size_t size) {
  void* const address = call_upstream(upstream, size, [&] { return upstream.raw_alloc(size); });
  return record_raw_allocation(upstream, address, size, c10::cuda::getCurrentCUDAStream().stream());
}

void* raw_allocate_untracked(native::CUDAAllocator& upstream, std::size_t size, cudaStream_t stream) {
  void* const address = call_upstream(upstream, size, [&] { return upstream.raw_alloc_with_stream(size, stream); });
  return record_raw_allocation(upstream, address, size, stream);
}

void free_untracked(void* address) {
  const std::optional<LiveBlock> block = address ? untracked_blocks().extract(address) : std::nullopt;
  if (block && cuda_is_traced()) record_cuda_call(EventKind::kFreeCompleted, address, block->size, block->location);
  const c10::DeleterFnPtr deleter = block ? block->deleter : fallback_deleter.load(std::memory_order_relaxed);
  const FrontRecordingScope recording;
  if (deleter) deleter(address);
}

void set_fallback_deleter(c10::DeleterFnPtr deleter) { fallback_deleter.store(deleter, std::memory_order_relaxed); }

void record_stream_untracked(native::CUDAAllocator& upstream, const c10::DataPtr& block, c10::cuda::CUDAStream stream) {
  if (block.get_deleter() != &free_untracked) return upstream.recordStream(block, stream);
  c10::DataPtr upstream_block(block.get(), block.get(), upstream.raw_deleter(), block.device());
  upstream.recordStream(upstream_block, stream);
  upstream_block.release_context();  // owned by the caller
}

}  // namespace alloctrace::torch_side
