#include "pinned_allocator.h"

#include <ATen/core/CachingHostAllocator.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "../block_table.h"
#include "../record_event.h"
#include "torch_release.h"

namespace alloctrace::torch_side {
namespace {

const Location kPinned{kPinnedMemory, 0, 0, 0, 0};

// By the context of the DataPtr, which stays the upstream's: its record_event() is asked with it.
BlockTable& blocks() {
  static BlockTable* const made = std::make_unique<BlockTable>().release();
  return *made;
}

// Only blocks that are in the table get this deleter, and each is freed once.
void free_pinned(void* context) {
  const std::optional<LiveAllocation> block = blocks().take(context);
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
    if (data.get() == nullptr) return data;
    const c10::DeleterFnPtr deleter = data.get_deleter();
    try {
      blocks().put(data.get_context(), {data.get(), size, kPinned, deleter});
    } catch (...) {  // no memory to remember it: then its free would not be seen either
      return data;
    }
    record(EventKind::kAlloc, data.get(), size, kPinned);
    static_cast<void>(data.compare_exchange_deleter(deleter, &free_pinned));  // it has just told that deleter
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

std::vector<PinnedAllocator*>& allocators() {
  static auto* const made = std::make_unique<std::vector<PinnedAllocator*>>().release();
  return *made;
}
PinnedAllocator* installed = nullptr;

PinnedAllocator* allocator_in_front_of(at::HostAllocator* upstream) {
  for (PinnedAllocator* known : allocators()) {
    if (known == upstream || known->upstream() == upstream) return known;
  }
  allocators().push_back(std::make_unique<PinnedAllocator>(upstream).release());
  return allocators().back();
}

// As put_in_slot() of allocator_slot.h: the lowest priority that is taken.
void set_host_allocator(at::HostAllocator* allocator) {
  for (int priority = 0; priority <= 255; ++priority) {
    at::setHostAllocator(at::kCUDA, allocator, static_cast<std::uint8_t>(priority));
    if (at::getHostAllocator(at::kCUDA) == allocator) return;
  }
}

}  // namespace

void install_pinned_allocator() {
  installed = allocator_in_front_of(at::getHostAllocator(at::kCUDA));
  set_host_allocator(installed);
}

void remove_pinned_allocator() {
  if (!installed) return;
  if (at::getHostAllocator(at::kCUDA) == installed) set_host_allocator(installed->upstream());
  installed = nullptr;
}

}  // namespace alloctrace::torch_side
