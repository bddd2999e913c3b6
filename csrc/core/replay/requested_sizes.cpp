#include "requested_sizes.h"

namespace alloctrace {

void RequestedSizes::fill_in(Event& event) {
  switch (event.kind) {
    case EventKind::kAlloc:
    case EventKind::kStateBlock:
    case EventKind::kFreeRequested:
    case EventKind::kFreeCompleted:
      break;
    default:
      return;
  }
  const Location& where = definitions_.location(event.location);
  Sizes& sizes = devices_[{where.device_type, where.device_index}];
  if (event.kind == EventKind::kStateBlock) {
    // Of a check point, all are known; of a recording that began in mid-run, or lost an alloc, they become known here.
    if (event.node_sequence == kBlockAllocated && !sizes.live.find(event.address)) {
      sizes.pending.erase(event.address);
      *sizes.live.insert(event.address).first = event.sequence;
    } else if (event.node_sequence == kBlockPendingFree && !sizes.pending.find(event.address)) {
      *sizes.pending.insert(event.address).first = event.sequence;
    }
    return;
  }
  if (event.kind == EventKind::kAlloc) {
    sizes.pending.erase(event.address);  // its completion was lost: the address is in use again
    *sizes.live.insert(event.address).first = event.size;
    return;
  }
  const bool completes = event.kind == EventKind::kFreeCompleted;
  AddressMap<std::uint64_t>& from = completes && sizes.pending.find(event.address) ? sizes.pending : sizes.live;
  if (const std::uint64_t* const size = from.find(event.address); size && event.size == 0) event.size = *size;
  from.erase(event.address);
  if (!completes) *sizes.pending.insert(event.address).first = event.size;
}

}  // namespace alloctrace
