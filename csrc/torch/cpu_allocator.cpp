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

// A free is recorded before it happens and an allocation after: the address cannot be handed out again in between, so
// no other thread's allocation of it can come before this free in the trace.
std::atomic<c10::DeleterFnPtr> first_upstream_deleter{nullptr};

void free_block(void* address) {
  // Empty tensors carry a null block with our deleter.
  if (address != nullptr) record(EventKind::kFreeCompleted, address, 0, kCpu);
  first_upstream_deleter.load(std::memory_order_relaxed)(address);
}

// A block whose context is not its address.
struct HeldBlock {
  c10::DataPtr upstream;
};
void free_held_block(void* context) {
  const std::unique_ptr<HeldBlock> held(static_cast<HeldBlock*>(context));
  record(EventKind::kFreeCompleted, held->upstream.get(), 0, kCpu);
}

thread_local bool probing = false;  // this thread tests whether calls reach our allocator; nothing is recorded
thread_local bool probe_seen = false;

class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(c10::Allocator* upstream) : upstream_(upstream), upstream_deleter_(upstream->raw_deleter()) {
    c10::DeleterFnPtr none = nullptr;
    // Our plain deleter can call only one upstream's deleter. Blocks of a second upstream (the program changed its CPU
    // allocator between two sessions) are held, which costs more.
    plain_ = upstream_deleter_ != nullptr &&
             (first_upstream_deleter.compare_exchange_strong(none, upstream_deleter_) || none == upstream_deleter_);
  }

  c10::DataPtr allocate(std::size_t size) override {
    if (probing) {
      probe_seen = true;
      return upstream_->allocate(size);
    }
    c10::DataPtr data = upstream_->allocate(size);
    if (data.get() == nullptr) {
      count_empty_allocation();
      return data;
    }
    if (plain_ && data.get() == data.get_context() && data.compare_exchange_deleter(upstream_deleter_, &free_block)) {
      record(EventKind::kAlloc, data.get(), size, kCpu);
      return data;
    }
    auto* const held = new (std::nothrow) HeldBlock;
    if (held == nullptr) {
      count_fault();  // neither the block nor its free is recorded
      return data;
    }
    void* const address = data.get();
    const c10::Device device = data.device();
    record(EventKind::kAlloc, address, size, kCpu);
    held->upstream = std::move(data);
    return {address, held, &free_held_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return plain_ ? &free_block : nullptr; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    upstream_->copy_data(destination, source, count);
  }
  c10::Allocator* upstream() const { return upstream_; }

 private:
  c10::Allocator* const upstream_;
  const c10::DeleterFnPtr upstream_deleter_;
  bool plain_;
};

struct CpuSlot {
  static c10::Allocator* current() { return c10::GetAllocator(c10::DeviceType::CPU); }
  static void set(c10::Allocator*, c10::Allocator* after) { set_allocator(c10::DeviceType::CPU, after); }
};
InFront<CpuAllocator, CpuSlot> in_front;
bool left_behind = false;  // another allocator was current when ours was to be removed

bool calls_reach_ours() {
  probing = true;
  probe_seen = false;
  CpuSlot::current()->allocate(1);
  probing = false;
  return probe_seen;
}

}  // namespace

void install_cpu_allocator() {
  // Ours is still in use behind another's allocator: a second one in front would record every block twice.
  if (left_behind && !in_front.is_ours() && calls_reach_ours()) return;
  left_behind = false;
  in_front.install();
}

void remove_cpu_allocator() {
  if (in_front.installed()) left_behind = !in_front.remove();
}

}  // namespace alloctrace::torch_side
