#include "replay.h"

#include <algorithm>

namespace alloctrace {

const DeviceMemory* Replay::find(std::int32_t device_type, std::int32_t device_index) const {
  for (const DeviceMemory& device : devices_) {
    if (device.device_type() == device_type && device.device_index() == device_index) return &device;
  }
  return nullptr;
}

std::size_t Replay::device_of(std::uint32_t location) {
  if (location >= told_.device_of_location.size()) told_.device_of_location.resize(location + std::size_t{1}, SIZE_MAX);
  std::size_t& index = told_.device_of_location[location];
  if (index != SIZE_MAX) return index;
  const Location& where = definitions_->location(location);
  const DeviceMemory* const known = find(where.device_type, where.device_index);
  index = known ? static_cast<std::size_t>(known - devices_.data()) : devices_.size();
  if (!known) {
    devices_.emplace_back(where.device_type, where.device_index, *definitions_);
    told_.is_known.push_back(!told_.had_loss);
    told_.was_in_use.push_back(false);
  }
  return index;
}

Change Replay::apply(Event& event, std::uint64_t sequence, std::int64_t time_ns, ReplayFindings* findings) {
  told_.time_ns = time_ns;
  switch (event.kind) {
    case EventKind::kAlloc:
    case EventKind::kFreeRequested:
    case EventKind::kFreeCompleted:
    case EventKind::kSegmentAlloc:
    case EventKind::kSegmentFree:
    case EventKind::kSegmentMap:
    case EventKind::kSegmentUnmap:
    case EventKind::kConfig:
    case EventKind::kNoSplit:
    case EventKind::kPoolRestore:
    case EventKind::kPoolUse:
    case EventKind::kPoolAllocator: {
      const std::size_t device = device_of(event.location);
      if (told_.state.left != 0 && device == told_.state.device) void_state(findings);
      const std::uint32_t forward_stack = event.kind == EventKind::kAlloc ? forward_.take(event) : 0;
      const char* const problem = devices_[device].apply(event, sequence, time_ns, forward_stack);
      if (problem && findings) {
        if (told_.is_known[device]) {
          ++findings->contradictions;
          if (findings->kept_contradictions.size() < ReplayFindings::kKept) {
            findings->kept_contradictions.push_back({sequence, device, problem});
          }
        } else {
          ++findings->after_loss;
        }
      }
      return {static_cast<std::ptrdiff_t>(device), forward_stack};
    }
    case EventKind::kAllocatorState:
      if (told_.state.left != 0) void_state(findings);
      told_.state = {device_of(event.location), sequence, event.size, time_ns, {}};
      if (told_.state.left != 0) return {};
      break;
    case EventKind::kStateSegment:
    case EventKind::kStateBlock:
      if (told_.state.left == 0 || device_of(event.location) != told_.state.device)
        return {};  // its beginning is missing
      told_.state.events.push_back(event);
      if (--told_.state.left != 0) return {};
      break;
    case EventKind::kLost:
      note_loss();
      return {};
    default:
      return {};
  }
  end_state(findings);
  return {static_cast<std::ptrdiff_t>(told_.state.device)};
}

// Events of it are missing.
void Replay::void_state(ReplayFindings* findings) {
  if (findings) ++findings->void_states;
  told_.state.left = 0;
  note_loss();
}

void Replay::end_state(ReplayFindings* findings) {
  DeviceMemory& device = devices_[told_.state.device];
  const bool is_first = device.is_untouched();  // a recording that began in mid-run
  if (is_first && !told_.state.events.empty()) told_.was_in_use[told_.state.device] = true;
  const std::string difference = device.difference_to(told_.state.events);
  if (findings) {
    ++findings->states;
    if (difference.empty() || is_first) {
      ++findings->agreeing;
    } else if (!told_.is_known[told_.state.device]) {
      ++findings->resumed;
    } else if (findings->differences.size() < ReplayFindings::kKept) {
      findings->differences.push_back({told_.state.sequence, told_.state.device, difference});
    }
  }
  if (difference.empty() || device.adopt(told_.state.events, told_.state.sequence, told_.state.time_ns)) {
    told_.is_known[told_.state.device] = true;
  } else if (findings) {
    ++findings->void_states;
  }
  told_.state.events.clear();
}

void Replay::note_loss() {
  told_.had_loss = true;
  std::fill(told_.is_known.begin(), told_.is_known.end(), false);
}

PackedReplay Replay::packed() const {
  const std::size_t forward_bytes = forward_.changed_bytes();
  PackedReplay packed{told_, forward_.rings(), forward_bytes, {}};
  for (const DeviceMemory& device : devices_) packed.devices.push_back(device.packed());
  return packed;
}

void Replay::unpack(const PackedReplay& packed) {
  told_ = packed.told;
  forward_.become(packed.forward);
  // Devices that there are stay: their memory need not be asked for again.
  while (devices_.size() > packed.devices.size()) devices_.pop_back();
  for (std::size_t index = 0; index < packed.devices.size(); ++index) {
    const PackedMemory& device = packed.devices[index];
    if (index == devices_.size()) devices_.emplace_back(device.device_type, device.device_index, *definitions_);
    devices_[index].unpack(device);
  }
}

std::size_t PackedReplay::bytes() const {
  std::size_t sum = sizeof *this + told.state.events.capacity() * sizeof(Event) + forward_bytes;
  for (const PackedMemory& device : devices) sum += device.bytes();
  return sum;
}

}  // namespace alloctrace
