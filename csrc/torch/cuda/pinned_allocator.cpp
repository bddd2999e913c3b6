#include "pinned_allocator.h"

#include <ATen/core/CachingHostAllocator.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "../../python/recording/memory_watch.h"
#include "../block_table.h"
#include "../in_front.h"
#include "../record_event.h"
#include "torch_release.h"

namespace alloctrace::torch_side {
namespace {

const Location kPinned{kPinnedMemory, 0, 0, 0, 0};

// Return the blocks by context of their DataPtr, which must stay the upstream's for its record_event().
BlockTable& pinned_blocks() {
  static BlockTable& table = BlockTable::create();
  return table;
}

// Free a block. Only blocks in the table have this deleter, and each is freed once.
void free_pinned(void* context) {
  const std::optional<LiveBlock> block = pinned_blocks().extract(context);
  if (!block) return;
  record(EventKind::kFreeCompleted, block->address, block->size, kPinned);
  block->deleter(context);
}

// Allocator in front, which forwards every virtual method of HostAllocator, as in allocator.cpp.
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
    if (!pinned_blocks().insert(data.get_context(), {data.get(), size, kPinned, deleter})) {
      count_fault();
      return data;
    }
    record(EventKind::kAlloc, data.get(), size, kPinned);
    static_cast<void>(data.compare_exchange_deleter(deleter, &free_pinned));  // cannot fail: `deleter` was just read
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
FrontInstaller<PinnedAllocator, PinnedSlot> pinned_front;

}  // namespace

void install_pinned_allocator() {
  at::HostAllocator* const upstream = pinned_front.install().upstream();
  python::watch_pinned_pool([upstream] {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(pinned_pool_bytes(upstream->get_stats()), 0));
  });
}
void remove_pinned_allocator() { pinned_front.remove(); }

}  // namespace alloctrace::torch_side
