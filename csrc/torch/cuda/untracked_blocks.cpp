#include "untracked_blocks.h"

#include <atomic>
#include <memory>
#include <optional>

#include "../block_table.h"
#include "../record_event.h"
#include "tracker.h"

namespace alloctrace::torch_side {

constinit thread_local bool front_records = false;

namespace {

class RecordsInFront {
 public:
  RecordsInFront() : before_(front_records) { front_records = true; }
  ~RecordsInFront() { front_records = before_; }
  RecordsInFront(const RecordsInFront&) = delete;
  RecordsInFront& operator=(const RecordsInFront&) = delete;

 private:
  const bool before_;
};

BlockTable& blocks() {
  static BlockTable& made = BlockTable::make();
  return made;
}

std::atomic<c10::DeleterFnPtr> deleter_of_unknown{nullptr};

// False when there was no memory to remember it, which is counted: the block then keeps its own deleter.
bool note_allocation(void* address, std::size_t size, c10::DeviceIndex device, const void* stream,
                     c10::DeleterFnPtr deleter) noexcept {
  const Location location{kCudaType, device, reinterpret_cast<std::uint64_t>(stream), 0, 0};
  if (!blocks().put(address, {address, size, location, deleter})) {
    if (cuda_is_traced()) count_fault();
    return false;
  }
  if (cuda_is_traced()) record_cuda_call(EventKind::kAlloc, address, size, location);
  return true;
}

void note_out_of_memory(native::CUDAAllocator& upstream, std::size_t size) noexcept {
  if (!cuda_is_traced()) return;
  std::size_t free_bytes = 0;
  c10::DeviceIndex device = 0;
  try {
    device = c10::cuda::current_device();
    free_bytes = free_bytes_of(upstream, device);
  } catch (...) {  // the event then has no free bytes
  }
  record_cuda_oom(free_bytes, size, {kCudaType, device, 0, 0, 0});
}

// A pluggable allocator may return null instead of throwing.
void note_null(native::CUDAAllocator& upstream, std::size_t size) noexcept {
  if (size == 0) {
    count_empty_allocation();
  } else {
    note_out_of_memory(upstream, size);
  }
}

template <typename Allocate>
auto allocate_in_front(native::CUDAAllocator& upstream, std::size_t size, Allocate allocate) {
  const RecordsInFront in_front;
  try {
    return allocate();
  } catch (const c10::OutOfMemoryError&) {
    note_out_of_memory(upstream, size);
    throw;
  } catch (const c10::AcceleratorError& error) {  // where torch calls cudaMalloc without a cache
    if (error.get_error_code() == cudaErrorMemoryAllocation) note_out_of_memory(upstream, size);
    throw;
  }
}

void* noted(native::CUDAAllocator& upstream, void* address, std::size_t size, cudaStream_t stream) {
  if (address == nullptr) {
    note_null(upstream, size);
  } else {
    note_allocation(address, size, c10::cuda::current_device(), stream, upstream.raw_deleter());
  }
  return address;
}

}  // namespace

c10::DataPtr allocate_untracked(native::CUDAAllocator& upstream, std::size_t size,
                                c10::function_ref<c10::DataPtr()> allocate) {
  c10::DataPtr data = allocate_in_front(upstream, size, allocate);
  if (data.get() == nullptr) {
    note_null(upstream, size);
    return data;
  }
  // A plain deleter could not free a block that has a context other than its address.
  if (data.get() != data.get_context()) return data;
  const c10::DeleterFnPtr deleter = data.get_deleter();
  const c10::DeviceIndex device = data.device().index();
  if (note_allocation(data.get(), size, device, c10::cuda::getCurrentCUDAStream(device).stream(), deleter)) {
    static_cast<void>(data.compare_exchange_deleter(deleter, &free_untracked));  // cannot fail: it was read just now
  }
  return data;
}

void* raw_allocate_untracked(native::CUDAAllocator& upstream, std::size_t size) {
  void* const address = allocate_in_front(upstream, size, [&] { return upstream.raw_alloc(size); });
  return noted(upstream, address, size, c10::cuda::getCurrentCUDAStream().stream());
}

void* raw_allocate_untracked(native::CUDAAllocator& upstream, std::size_t size, cudaStream_t stream) {
  void* const address = allocate_in_front(upstream, size, [&] { return upstream.raw_alloc_with_stream(size, stream); });
  return noted(upstream, address, size, stream);
}

void free_untracked(void* address) {
  const std::optional<LiveBlock> block = address ? blocks().take(address) : std::nullopt;
  if (block && cuda_is_traced()) record_cuda_call(EventKind::kFreeCompleted, address, block->size, block->location);
  const c10::DeleterFnPtr deleter = block ? block->deleter : deleter_of_unknown.load(std::memory_order_relaxed);
  const RecordsInFront in_front;
  if (deleter) deleter(address);
}

void set_deleter_of_unknown(c10::DeleterFnPtr deleter) { deleter_of_unknown.store(deleter, std::memory_order_relaxed); }

void record_stream_untracked(native::CUDAAllocator& upstream, const c10::DataPtr& block, c10::cuda::CUDAStream stream) {
  if (block.get_deleter() != &free_untracked) return upstream.recordStream(block, stream);
  c10::DataPtr as_upstream_made_it(block.get(), block.get(), upstream.raw_deleter(), block.device());
  upstream.recordStream(as_upstream_made_it, stream);
  as_upstream_made_it.release_context();  // it is the caller's
}

}  // namespace alloctrace::torch_side
