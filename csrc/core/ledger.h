// Which blocks are live, and what each stack has allocated: the account that follows from alloc and free events alone,
// for every device. Bytes are requested bytes, the sizes that the program asked for.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "address_map.h"
#include "definitions.h"
#include "event.h"
#include "forward_stacks.h"

namespace alloctrace {

struct LiveBlock {
  std::uint64_t size = 0;
  std::uint64_t birth = 0;  // sequence number of its alloc
  std::int64_t birth_ns = 0;
  std::uint32_t stack = 0;  // of forward, where `backward` says so
  bool backward = false;    // made in backward, without a Python stack of its own
  std::uint32_t thread = 0;
  std::uint32_t place = 0;
};

struct StackTotals {
  std::uint64_t allocations = 0;
  std::uint64_t bytes = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t largest = 0;
  std::uint64_t live_backward_bytes = 0;  // of live_bytes, those that backward made for this stack of forward
};

// One per device.
struct DeviceLedger {
  std::int32_t device_type = 0, device_index = 0;
  AddressMap<LiveBlock> live;
  AddressMap<std::uint64_t> pending_frees;  // requested but not yet completed: their sizes
  std::vector<StackTotals> stacks;          // by stack id
  std::uint64_t live_bytes = 0;
};

class Ledger {
 public:
  explicit Ledger(const Definitions& definitions) : definitions_(definitions) {}

  // Takes in the next event. For a free whose size was not told, fills it in from the block's alloc.
  void apply(Event& event, std::uint64_t sequence, std::int64_t time_ns);

  const std::vector<DeviceLedger>& devices() const { return devices_; }
  // Frees of blocks whose alloc is not in the trace: they were alive before it began, or their alloc was lost.
  std::uint64_t unmatched_frees() const { return unmatched_frees_; }
  // Allocs at an address that was live: the free between is missing. The old block is taken as freed.
  std::uint64_t missed_frees() const { return missed_frees_; }

 private:
  DeviceLedger& device(std::uint32_t place);
  void allocate(const Event& event, std::uint64_t size, std::uint64_t sequence, std::int64_t time_ns);
  std::uint32_t forward_stack(const Event& event);
  bool is_of_view(std::uint16_t node_type);
  void retire(DeviceLedger& device, const LiveBlock& block);

  const Definitions& definitions_;
  ForwardStacks forward_;
  std::vector<bool> of_view_;  // by node type
  std::vector<DeviceLedger> devices_;
  std::vector<std::size_t> device_of_place_;
  std::uint64_t unmatched_frees_ = 0, missed_frees_ = 0;
};

}  // namespace alloctrace
