#include "ledger.h"

#include <algorithm>

namespace alloctrace {

DeviceLedger& Ledger::device(std::uint32_t place) {
  if (place >= device_of_place_.size()) device_of_place_.resize(place + std::size_t{1}, SIZE_MAX);
  std::size_t& index = device_of_place_[place];
  if (index == SIZE_MAX) {
    const Place& where = definitions_.place(place);
    const auto known = std::find_if(devices_.begin(), devices_.end(), [&](const DeviceLedger& device) {
      return device.device_type == where.device_type && device.device_index == where.device_index;
    });
    index = static_cast<std::size_t>(known - devices_.begin());
    if (known == devices_.end()) {
      devices_.emplace_back();
      devices_.back().device_type = where.device_type;
      devices_.back().device_index = where.device_index;
    }
  }
  return devices_[index];
}

void Ledger::retire(DeviceLedger& device, const LiveBlock& block) {
  StackTotals& totals = device.stacks[block.stack];
  --totals.live_blocks;
  totals.live_bytes -= block.size;
  if (block.backward) totals.live_backward_bytes -= block.size;
  device.live_bytes -= block.size;
}

bool Ledger::is_of_view(std::uint16_t node_type) {
  while (of_view_.size() <= node_type) {
    of_view_.push_back(is_node_of_view(definitions_.node_type(static_cast<std::uint32_t>(of_view_.size())).name));
  }
  return of_view_[node_type];
}

// The stack of forward for an allocation of backward that has none of its own, else 0.
std::uint32_t Ledger::forward_stack(const Event& event) {
  if (event.kind != EventKind::kAlloc) return 0;
  if (event.node_type != 0) {
    if (event.stack != 0 || is_of_view(event.node_type)) return 0;
    return forward_.find(event.node_thread, event.node_sequence);
  }
  forward_.note(definitions_.thread(event.thread).autograd_id, event.sequence, event.stack);
  return 0;
}

void Ledger::allocate(const Event& event, std::uint64_t size, std::uint64_t sequence, std::int64_t time_ns) {
  DeviceLedger& owner = device(event.place);
  const std::uint32_t of_forward = forward_stack(event);
  const bool backward = of_forward != 0;
  const std::uint32_t stack = backward ? of_forward : event.stack;
  if (stack >= owner.stacks.size()) owner.stacks.resize(stack + std::size_t{1});
  owner.pending_frees.erase(event.address);  // its completion was lost: the address is in use again
  const auto [block, is_new] = owner.live.insert(event.address);
  if (!is_new) {
    ++missed_frees_;
    retire(owner, *block);
  }
  *block = {size, sequence, time_ns, stack, backward, event.thread, event.place};
  StackTotals& totals = owner.stacks[stack];
  ++totals.allocations;
  totals.bytes += size;
  ++totals.live_blocks;
  totals.live_bytes += size;
  if (backward) totals.live_backward_bytes += size;
  totals.largest = std::max(totals.largest, size);
  owner.live_bytes += size;
}

void Ledger::apply(Event& event, std::uint64_t sequence, std::int64_t time_ns) {
  switch (event.kind) {
    case EventKind::kAlloc:
      allocate(event, event.size, sequence, time_ns);
      break;
    case EventKind::kStateBlock: {
      // Of a check point, all are known; of a recording that began in mid-run, or lost an alloc, they become known
      // here.
      DeviceLedger& owner = device(event.place);
      if (event.node_sequence == kBlockAllocated && !owner.live.find(event.address)) {
        allocate(event, event.sequence, sequence, time_ns);
      } else if (event.node_sequence == kBlockPendingFree && !owner.pending_frees.find(event.address)) {
        *owner.pending_frees.insert(event.address).first = event.sequence;
      }
      break;
    }
    case EventKind::kFreeRequested:
    case EventKind::kFreeCompleted: {
      DeviceLedger& owner = device(event.place);
      if (event.kind == EventKind::kFreeCompleted) {
        if (const std::uint64_t* requested = owner.pending_frees.find(event.address)) {
          if (event.size == 0) event.size = *requested;
          owner.pending_frees.erase(event.address);
          break;
        }
      }
      const LiveBlock* block = owner.live.find(event.address);
      if (block && event.size == 0) event.size = block->size;
      if (event.kind == EventKind::kFreeRequested) *owner.pending_frees.insert(event.address).first = event.size;
      if (!block) {
        ++unmatched_frees_;
        break;
      }
      retire(owner, *block);
      owner.live.erase(event.address);
      break;
    }
    default:
      break;
  }
}

}  // namespace alloctrace
