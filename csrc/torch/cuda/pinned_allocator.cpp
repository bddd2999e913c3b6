#include "pinned_allocator.h"

#include <ATen/core/CachingHostAllocator.h>

#include <functional>
#include <memory>
#include <utility>

#include "../block_table.h"
#include "../in_front.h"
#include "../record_event.h"
#include "torch_release.h"

namespace alloctrace::torch_side {
namespace {

const Location kPinned{kPinnedMemory, 0, 0, 0, 0};

// By the context of the DataPtr, which stays the upstream's: its record_event() needs it.
BlockTable& blocks() {
  static BlockTable& made = BlockTable::make();
  return made;
}

// Only blocks that are in the table get this deleter, and each is freed once.
void free_pinned(void* context) {
  const std::optional<LiveBlock> block = blocks().take(context);
  if (!block) return;
  record(EventKind::kFreeCompleted, block->address, block->size, kPinned);
  block->deleter(context);
}

// Every virtual method of HostAllocator, forwarded, as in allocator.cpp.
class PinnedAllocator final : public HostAllocatorOfRelease<PinnedAllocator> {
 public:
  explicit PinnedAllocator(at::HostAllocator* upstream) : upstream_(upstream) {}
  at::HostAllocator* upstream() const { return upstream_; }

  at::DataPtr allocate(std::size_t size) override {
    at::DataPtr data = upstream_->allocate(size);
    if (data.get() == nullptr) {
      count_empty_allocation();
      return data;
    }
    const c10::DeleterFnPtr deleter = data.get_deleter();
    if (!blocks().put(data.get_context(), {data.get(), size, kPinned, deleter})) {
      count_fault();
      return data;
    }
    record(EventKind::kAlloc, data.get(), size, kPinned);
    static_cast<void>(data.compare_exchange_deleter(deleter, &free_pinned));  // cannot fail: it was read just now
    return data;
  }

  c10::DeleterFnPtr raw_deleter() const override { return upstream_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    upstream_->copy_data(to, from, count);
  }
  bool is_simple_data_ptr(const at::DataPtr& data) const override { return upstream_->is_simple_data_ptr(data); }
  bool record_event(void* address, void* context, c10::Stream stream) override {
    return upstream_->record_event(address, context, stream);
  }
  void empty_cache() override { upstream_->empty_cache(); }
  at::HostStats get_stats() override { return upstream_->get_stats(); }
  void reset_accumulated_stats() override { upstream_->reset_accumulated_stats(); }
  void reset_peak_stats() override { upstream_->reset_peak_stats(); }

 private:
  at::HostAllocator* const upstream_;
};

struct PinnedSlot {
  static at::HostAllocator* current() { return at::getHostAllocator(at::kCUDA); }
  static void set(at::HostAllocator*, at::HostAllocator* after) {
    set_at_lowest_priority([&](std::uint8_t priority) { at::setHostAllocator(at::kCUDA, after, priority); },
                           [&] { return current() == after; });
  }
};
InFront<PinnedAllocator, PinnedSlot> in_front;

}  // namespace

void install_pinned_allocator() { in_front.install(); }

void remove_pinned_allocator() { in_front.remove(); }

}  // namespace alloctrace::torch_side
