#include "roles.h"

#include <algorithm>

namespace alloctrace {
namespace {

constexpr std::int32_t kCpu = 0;

bool is_before_pass(Lifetime lifetime) {
  return lifetime == Lifetime::kBrief || lifetime == Lifetime::kSameStep || lifetime == Lifetime::kLaterStep;
}

const Piece* find_live(const DeviceMemory* device, std::uint64_t address) {
  return device ? device->find_allocated(address) : nullptr;
}

}  // namespace

void Roles::add_named(const Event& event, std::uint64_t sequence, const Replay& replay) {
  const RoleFields named(event);
  if (named.role == 0 || named.role >= kRoleCount) return;
  const Location& where = definitions_->location(event.location);
  const DeviceMemory* device = replay.find(where.device_type, where.device_index);
  const Piece* piece = find_live(device, event.address);
  if (!piece && where.device_type == kCpu) {  // torch assigns pinned memory to the CPU
    device = replay.find(kPinnedMemory, 0);
    piece = find_live(device, event.address);
  }
  if (!piece) return;
  const auto number = static_cast<std::size_t>(device - replay.devices().data());
  const auto role = static_cast<Role>(named.role);
  named_.push_back({sequence, number, piece->address, piece->alloc_sequence, piece->requested, piece->stack,
                    static_cast<std::uint32_t>(named.name), named.module, role, piece->is_older});
  Place place{number, piece->stack, 0, 0};
  if (piece->node_type != 0) place = {number, piece->stack, piece->node_type, piece->requested};
  exact_[{piece->alloc_sequence, piece->address}] = {role, place};
}

void Roles::finish(const Replay& end) {
  lifetimes_.finish(end.devices());
  for (const NamedBlock& block : named_) {
    const auto& [role, place] = exact_.at({block.alloc_sequence, block.address});
    siblings_[place][static_cast<std::size_t>(role)] += block.requested;
  }
  for (const DeviceMemory& device : end.devices()) {
    std::vector<bool>& is_recurring = is_recurring_.emplace_back();
    for (const StackTotals& totals : device.stacks()) is_recurring.push_back(totals.allocations > 1);
  }
}

Role Roles::role_of_siblings(const Place& place) const {
  const auto sums = siblings_.find(place);
  if (sums == siblings_.end()) return Role::kUnknown;
  return static_cast<Role>(std::max_element(sums->second.begin(), sums->second.end()) - sums->second.begin());
}

BlockRole Roles::role_of(std::size_t device, const Piece& piece) const {
  if (definitions_->origin_of(piece.stack).kind == StackOrigin::Kind::kLibrary) return {Role::kLibraryWorkspace, true};
  const auto named = exact_.find({piece.alloc_sequence, piece.address});
  if (named != exact_.end()) return {named->second.role, true};
  if (piece.is_older) return {};
  Lifetime lifetime = lifetimes_.of(piece.alloc_sequence);
  const bool is_cut_off = lifetime == Lifetime::kCutOff || lifetime == Lifetime::kCutOffForward;
  Role role = Role::kUnknown;
  if (piece.node_type != 0) {
    if (is_cut_off || lifetime == Lifetime::kPassingProgram || lifetime == Lifetime::kLeftByPass) {
      role = role_of_siblings({device, piece.stack, piece.node_type, piece.requested});
    }
  } else if (is_cut_off || lifetime == Lifetime::kLong || lifetime == Lifetime::kLaterStep ||
             lifetime == Lifetime::kInputHeld || lifetime == Lifetime::kOutlived) {
    role = role_of_siblings({device, piece.stack, 0, 0});
  }
  if (role != Role::kUnknown) return {role, false};
  const bool is_freed_soon = lifetime == Lifetime::kBrief || lifetime == Lifetime::kSameStep;
  if (!is_freed_soon && lifetimes_.kinds().is_making_parameters(piece.stack)) return {Role::kParameter, false};
  // The last blocks of a list that the program clears are freed as early as inputs and temporaries.
  const bool may_be_result = piece.node_type == 0 && (lifetime == Lifetime::kInputHeld || is_before_pass(lifetime));
  if (is_cut_off || may_be_result) {
    const Lifetime usual = lifetimes_.most_common(device, piece.stack, piece.node_type);
    if (usual == Lifetime::kOutlived || (is_cut_off && usual != Lifetime::kUnknown)) lifetime = usual;
  }
  return {role_of_lifetime(lifetime, device, piece), false};
}

Role Roles::role_of_lifetime(Lifetime lifetime, std::size_t device, const Piece& piece) const {
  const auto is_recurring = [&] {
    return device < is_recurring_.size() && piece.stack < is_recurring_[device].size() &&
           is_recurring_[device][piece.stack];
  };
  const auto is_usually_brief = [&] {
    return lifetimes_.most_common(device, piece.stack, piece.node_type) == Lifetime::kBrief;
  };
  switch (lifetime) {
    case Lifetime::kBrief:
      // Without steps and passes, only a stack that allocates repeatedly, mostly one block at a time: the last block of
      // a list is freed before the next allocation of its stack, too.
      return lifetimes_.has_clock() || (is_recurring() && is_usually_brief()) ? Role::kTemporary : Role::kUnknown;
    case Lifetime::kSameStep:
      return lifetimes_.has_clock() ? Role::kTemporary : Role::kUnknown;
    case Lifetime::kPassing:
    case Lifetime::kPassingProgram:
      return Role::kTemporary;
    case Lifetime::kSaved:
    case Lifetime::kCutOffForward:
      return Role::kActivation;
    case Lifetime::kInputSaved:
      return Role::kInput;
    case Lifetime::kInputHeld:
      return is_of_optimizer(piece.stack) ? Role::kOptimizerState : Role::kInput;
    case Lifetime::kLong:
      return is_of_optimizer(piece.stack) ? Role::kOptimizerState : Role::kUnknown;
    case Lifetime::kOutlived:
      return is_of_optimizer(piece.stack) ? Role::kOptimizerState : Role::kOther;
    case Lifetime::kLeftByPass:
      return Role::kGradient;
    case Lifetime::kUnknown:
    case Lifetime::kLaterStep:
    case Lifetime::kCutOff:
      return Role::kUnknown;
  }
  return Role::kUnknown;
}

}  // namespace alloctrace
