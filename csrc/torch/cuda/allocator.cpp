#include "allocator.h"

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../../python/recording/memory_watch.h"
#include "../../python/recording/pending_calls.h"
#include "../autograd_context.h"
#include "../in_front.h"
#include "allocator_state.h"
#include "forwarded_calls.h"
#include "pinned_allocator.h"
#include "pluggable_pair.h"
#include "torch_release.h"
#include "tracker.h"
#include "untracked_blocks.h"

namespace alloctrace::torch_side {
namespace {

// Like torch: read once, and any value disables caching.
const bool caching_is_disabled = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;

// Return what `allocate` returns. On its first out-of-memory errors, scan objects while the caller's frames exist.
template <typename Allocate>
auto scan_if_out_of_memory(Allocate allocate) {
  try {
    return allocate();
  } catch (const c10::OutOfMemoryError&) {
    if (cuda_is_traced()) python::scan_out_of_memory(is_in_backward());
    throw;
  }
}

// Allocator in front, which forwards every virtual method of CUDAAllocator; its base class forwards those that some
// releases of torch lack. Without an override, torch's base class would throw "not supported" or do nothing:
// tests/recording/test_cuda_forwarding.py compares this list with torch's header.
//
// If the upstream has a tracker, its DataPtrs keep their deleter: frees bypass this class and reach the tracker.
// Otherwise this class records allocations and frees itself. Nothing is recorded twice.
class ForwardingAllocator final : public CUDAAllocatorOfRelease<ForwardingAllocator> {
 public:
  explicit ForwardingAllocator(native::CUDAAllocator* upstream)
      : upstream_(upstream), tracked_(has_trackers(*upstream)), is_caching_(upstream->isEnabled()) {
    set_fallback_deleter(upstream->raw_deleter());
  }
  native::CUDAAllocator* upstream() const { return upstream_; }
  // Read whether the upstream caches: while nothing is recorded, torch's enable() bypasses this class.
  void update_caching() { is_caching_.store(upstream_->isEnabled(), std::memory_order_relaxed); }

  // Methods that are timed or recorded.
  [[gnu::hot]] c10::DataPtr allocate(std::size_t size) override {
    void* const caller = __builtin_return_address(0);
    return scan_if_out_of_memory([&] {
      const TimedCall timed(caller);
      if (!must_record()) [[likely]]
        return next().allocate(size);
      return allocate_untracked(*upstream_, size, [&] { return next().allocate(size); });
    });
  }
  void* raw_alloc(std::size_t size) override {
    return scan_if_out_of_memory([&] {
      const TimedCall timed;
      return must_record() ? raw_allocate_untracked(next(), size) : next().raw_alloc(size);
    });
  }
  void* raw_alloc_with_stream(std::size_t size, cudaStream_t stream) override {
    return scan_if_out_of_memory([&] {
      const TimedCall timed;
      return must_record() ? raw_allocate_untracked(next(), size, stream) : next().raw_alloc_with_stream(size, stream);
    });
  }
  void init(int device_count) override {
    next().init(device_count);
    on_allocator_initialised(*upstream_);
  }
  void emptyCache(c10::MempoolId_t pool) override {
    record_empty_cache(pool);
    next().emptyCache(pool);
  }
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override {
    record_stream_use(block.get(), stream.device_index(), stream.stream());
    record_stream_untracked(next(), block, stream);
  }

  void enable(bool value) override {
    next().enable(value);
    update_caching();
  }
  c10::DeleterFnPtr raw_deleter() const override { return must_record() ? &free_untracked : next().raw_deleter(); }
  void raw_delete(void* address) override {
    if (must_record()) return free_untracked(address);
    next().raw_delete(address);
  }

  // Forwarding methods; some also record an event.
  void copy_data(void* to, const void* from, std::size_t count) const override { next().copy_data(to, from, count); }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return next().is_simple_data_ptr(data); }
  bool initialized() override { return next().initialized(); }
  native::DeviceStats getDeviceStats(c10::DeviceIndex device) override { return next().getDeviceStats(device); }
  void resetAccumulatedStats(c10::DeviceIndex device) override { next().resetAccumulatedStats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { next().resetPeakStats(device); }
  double getMemoryFraction(c10::DeviceIndex device) override { return next().getMemoryFraction(device); }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    next().setMemoryFraction(fraction, device);
    record_memory_fraction(*upstream_, device);
  }
  bool isEnabled() const override { return next().isEnabled(); }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override { next().cacheInfo(device, largest); }
  void* getBaseAllocation(void* address, std::size_t* size) override { return next().getBaseAllocation(address, size); }
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    next().beginAllocateToPool(device, pool, std::move(filter));
    record_pool_use(device, pool, true);
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    record_pool_use(device, pool, false);
    next().endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    const RecordedPoolRelease recorded(*upstream_, device, pool);
    next().releasePool(device, pool);
  }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return next().getPoolUseCount(device, pool);
  }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return next().checkPoolLiveAllocations(device, pool, expected);
  }
  native::ShareableHandle shareIpcHandle(void* address) override { return next().shareIpcHandle(address); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return next().getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return next().isHistoryEnabled(); }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& annotation) override {
    next().recordAnnotation(annotation);
  }
  void pushCompileContext(std::string& context) override { next().pushCompileContext(context); }
  void popCompileContext() override { next().popCompileContext(); }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    next().attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override {
    next().attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override {
    next().enablePeerAccess(device, peer);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t count,
                          cudaStream_t stream, bool peer_to_peer) override {
    return next().memcpyAsync(to, to_device, from, from_device, count, stream, peer_to_peer);
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return next().getCheckpointState(device, pool);
  }
  native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override {
    const RecordedPoolRestore recorded(device);
    return next().setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return next().name(); }

 private:
  friend class CUDAAllocatorOfRelease<ForwardingAllocator>;
  native::CUDAAllocator& next() const {
    ++thread_calls.forwarded;
    return *upstream_;
  }
  // Record the `size` bytes that `call` allocates from the upstream.
  template <typename Call>
  c10::DataPtr allocate_recorded(std::size_t size, Call call) {
    const TimedCall timed;
    return must_record() ? allocate_untracked(*upstream_, size, call) : call();
  }
  static void on_pool_created(c10::DeviceIndex device, c10::MempoolId_t pool, bool has_allocator) {
    if (has_allocator) record_pool_allocator(device, pool);
  }
  static void on_use_on_oom_set(c10::DeviceIndex device, c10::MempoolId_t pool, bool begins) {
    record_pool_on_oom(device, pool, begins);
  }
  static void on_capture_marked(c10::DeviceIndex device, bool begins) { record_capture(device, begins); }
  static void on_no_split_set(c10::DeviceIndex device, c10::MempoolId_t pool) { record_no_split(device, pool); }
  // With caching disabled, torch's allocator does not call its tracker.
  bool must_record() const { return !tracked_ || !is_caching_.load(std::memory_order_relaxed) || caching_is_disabled; }

  native::CUDAAllocator* const upstream_;
  const bool tracked_;
  std::atomic<bool> is_caching_;
};

// Slot of the CUDA allocator. Does not use torch's changeCurrentAllocator(), which rejects an allocator in use,
// although blocks do not depend on this pointer, and which discards the allocator that the program registered.
struct CudaSlot {
  static native::CUDAAllocator* current() { return native::get(); }
  static void set(native::CUDAAllocator* before, native::CUDAAllocator* after) {
    native::allocator.store(after);
    const c10::Allocator* const in_table = c10::GetAllocator(c10::DeviceType::CUDA);
    if (in_table == before || in_table == nullptr) set_allocator(c10::DeviceType::CUDA, after);
  }
};
FrontInstaller<ForwardingAllocator, CudaSlot> cuda_front;

}  // namespace

bool cuda_allocator_is_built() { return true; }

void install_cuda_allocator(bool torch_is_initialised) {
  ForwardingAllocator& front = cuda_front.install();
  front.update_caching();
  native::CUDAAllocator& upstream = *front.upstream();
  install_pinned_allocator();
  begin_cuda_tracing(upstream, torch_is_initialised);
}

void remove_cuda_allocator() {
  if (!cuda_front.installed()) return;
  remove_pinned_allocator();
  end_cuda_tracing(*cuda_front.installed()->upstream());
  cuda_front.remove();
}

bool snapshot_cuda_allocator() {
  return cuda_front.installed() && write_cuda_state(*cuda_front.installed()->upstream());
}

std::vector<CudaTotals> cuda_totals() noexcept {
  std::vector<CudaTotals> totals;
  try {
    native::CUDAAllocator* const allocator = native::get();
    if (!allocator || !allocator->initialized()) return totals;
    for (std::size_t index = 0; index < python::devices_in_use.size(); ++index) {
      if (!python::devices_in_use[index].load(std::memory_order_relaxed)) continue;
      const native::DeviceStats stats = allocator->getDeviceStats(static_cast<c10::DeviceIndex>(index));
      // Index 0: the sum over small and large segments.
      totals.push_back({static_cast<std::int32_t>(index), stats.requested_bytes[0].current,
                        stats.allocated_bytes[0].current, stats.active_bytes[0].current,
                        stats.reserved_bytes[0].current});
    }
  } catch (...) {  // this allocator has no statistics
  }
  return totals;
}

std::string cuda_allocator_instead_of_ours() {
  // A pluggable allocator made of our pair records its blocks itself.
  return cuda_front.installed() && !cuda_front.is_ours_current() && !pair_is_used() ? native::get()->name() : "";
}

}  // namespace alloctrace::torch_side
