#include "cpu_allocator.h"

#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "in_front.h"
#include "record_event.h"

namespace alloctrace::torch_side {
namespace {

const Location kCpu{static_cast<std::int32_t>(c10::DeviceType::CPU), 0, 0, 0, 0};

std::atomic<c10::DeleterFnPtr> first_upstream_deleter{nullptr};

// Record the free, then free: otherwise another thread could get the address and record its allocation first.
void free_block(void* address) {
  // Empty tensors have a null block with this deleter.
  if (address != nullptr) record(EventKind::kFreeCompleted, address, 0, kCpu);
  first_upstream_deleter.load(std::memory_order_relaxed)(address);
}

// Owner of an upstream block that cannot get free_block() as its deleter.
struct WrappedBlock {
  c10::DataPtr upstream;
};
void free_wrapped_block(void* context) {
  const std::unique_ptr<WrappedBlock> wrapped(static_cast<WrappedBlock*>(context));
  record(EventKind::kFreeCompleted, wrapped->upstream.get(), 0, kCpu);
}

thread_local bool is_probing = false;  // this thread is in calls_reach_ours(): nothing is recorded
thread_local bool probe_reached_ours = false;

class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(c10::Allocator* upstream) : upstream_(upstream), upstream_deleter_(upstream->raw_deleter()) {
    c10::DeleterFnPtr first = nullptr;
    // free_block() calls only one upstream's deleter: blocks of the program's later allocators are wrapped.
    direct_ = upstream_deleter_ != nullptr &&
              (first_upstream_deleter.compare_exchange_strong(first, upstream_deleter_) || first == upstream_deleter_);
  }

  c10::DataPtr allocate(std::size_t size) override {
    if (is_probing) {
      probe_reached_ours = true;
      return upstream_->allocate(size);
    }
    c10::DataPtr data = upstream_->allocate(size);
    if (data.get() == nullptr) {
      count_empty_allocation();
      return data;
    }
    if (direct_ && data.get() == data.get_context() && data.compare_exchange_deleter(upstream_deleter_, &free_block)) {
      record(EventKind::kAlloc, data.get(), size, kCpu);
      return data;
    }
    auto* const wrapped = new (std::nothrow) WrappedBlock;
    if (wrapped == nullptr) {
      count_fault();  // neither the block nor its free is recorded
      return data;
    }
    void* const address = data.get();
    const c10::Device device = data.device();
    record(EventKind::kAlloc, address, size, kCpu);
    wrapped->upstream = std::move(data);
    return {address, wrapped, &free_wrapped_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return direct_ ? &free_block : nullptr; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    upstream_->copy_data(destination, source, count);
  }
  c10::Allocator* upstream() const { return upstream_; }

 private:
  c10::Allocator* const upstream_;
  const c10::DeleterFnPtr upstream_deleter_;
  bool direct_;  // blocks get free_block() as their deleter; else they are wrapped
};

struct CpuSlot {
  static c10::Allocator* current() { return c10::GetAllocator(c10::DeviceType::CPU); }
  static void set(c10::Allocator*, c10::Allocator* after) { set_allocator(c10::DeviceType::CPU, after); }
};
FrontInstaller<CpuAllocator, CpuSlot> cpu_front;
bool removal_failed = false;  // ours stayed behind another allocator

bool calls_reach_ours() {
  is_probing = true;
  probe_reached_ours = false;
  CpuSlot::current()->allocate(1);
  is_probing = false;
  return probe_reached_ours;
}

}  // namespace

void install_cpu_allocator() {
  // If ours is still in use behind another allocator, a second one in front would record every block twice.
  if (removal_failed && !cpu_front.is_ours_current() && calls_reach_ours()) return;
  removal_failed = false;
  cpu_front.install();
}

void remove_cpu_allocator() {
  if (cpu_front.installed()) removal_failed = !cpu_front.remove();
}

}  // namespace alloctrace::torch_side
