#include "role_allocations.h"

#include <algorithm>

namespace alloctrace {

std::vector<std::array<RoleAllocations, kRoleCount>> role_allocations(TraceCursor cursor, const Roles& roles,
                                                                      std::uint64_t first, std::uint64_t until) {
  std::vector<std::array<RoleAllocations, kRoleCount>> by_device;
  const auto on_event = [&](const Event& event, std::uint64_t sequence, std::int64_t, const Change& change) {
    if (change.device < 0 || sequence < first || event.kind != EventKind::kAlloc) return;
    const auto device = static_cast<std::size_t>(change.device);
    if (device >= by_device.size()) by_device.resize(device + 1);
    const DeviceMemory& memory = cursor.replay().devices()[device];
    const Piece& piece = memory.piece(memory.last_allocated());
    const BlockRole role = roles.role_of(device, piece);
    RoleAllocations& sums = by_device[device][static_cast<std::size_t>(role.role)];
    ++sums.allocations;
    sums.bytes += piece.requested;
    if (role.is_exact) sums.exact_bytes += piece.requested;
    sums.largest = std::max<std::uint64_t>(sums.largest, piece.requested);
  };
  while (cursor.consume_chunk(until, nullptr, on_event)) {
  }
  return by_device;
}

}  // namespace alloctrace
