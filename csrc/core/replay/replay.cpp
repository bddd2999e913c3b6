#include "replay.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace alloctrace {

const DeviceMemory* Replay::find(std::int32_t device_type, std::int32_t device_index) const {
  for (const DeviceMemory& device : devices_) {
    if (device.device_type() == device_type && device.device_index() == device_index) return &device;
  }
  return nullptr;
}

std::size_t Replay::device_of(std::uint32_t location) {
  if (location >= seen_.device_of_location.size()) seen_.device_of_location.resize(location + std::size_t{1}, SIZE_MAX);
  std::size_t& index = seen_.device_of_location[location];
  if (index != SIZE_MAX) return index;
  const Location& where = definitions_->location(location);
  const DeviceMemory* const known = find(where.device_type, where.device_index);
  index = known ? static_cast<std::size_t>(known - devices_.data()) : devices_.size();
  if (!known) {
    devices_.emplace_back(where.device_type, where.device_index, *definitions_);
    seen_.is_known.push_back(!seen_.had_loss);
    seen_.was_in_use.push_back(false);
  }
  return index;
}

Change Replay::apply(Event& event, std::uint64_t sequence, std::int64_t time_ns, ReplayFindings* findings) {
  seen_.time_ns = time_ns;
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
      if (seen_.state.left != 0 && device == seen_.state.device) void_state(findings);
      const std::uint32_t forward_stack = event.kind == EventKind::kAlloc ? forward_.take(event) : 0;
      const char* const problem = devices_[device].apply(event, sequence, time_ns, forward_stack);
      if (problem && findings) {
        if (seen_.is_known[device]) {
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
      if (seen_.state.left != 0) void_state(findings);
      seen_.state = {device_of(event.location), sequence, AllocatorStateFields(event).entries, time_ns, {}};
      if (seen_.state.left != 0) return {};
      break;
    case EventKind::kStateSegment:
    case EventKind::kStateBlock:
      if (seen_.state.left == 0 || device_of(event.location) != seen_.state.device)
        return {};  // its beginning is missing
      seen_.state.events.push_back(event);
      if (--seen_.state.left != 0) return {};
      break;
    case EventKind::kLost:
      note_loss();
      return {};
    default:
      return {};
  }
  const bool is_other = end_state(findings);
  return {static_cast<std::ptrdiff_t>(seen_.state.device), 0, is_other};
}

// Events of the state are missing.
void Replay::void_state(ReplayFindings* findings) {
  if (findings) ++findings->void_states;
  seen_.state.left = 0;
  note_loss();
}

bool Replay::end_state(ReplayFindings* findings) {
  DeviceMemory& device = devices_[seen_.state.device];
  const bool is_first = device.is_untouched();  // a recording that began in mid-run
  if (is_first && !seen_.state.events.empty()) seen_.was_in_use[seen_.state.device] = true;
  const bool begins = is_first && seen_.is_known[seen_.state.device];
  const bool agrees = device.equals(seen_.state.events);
  std::optional<DeviceMemory> described;
  if (!agrees) {
    described = device.described_by(seen_.state.events, seen_.state.sequence, seen_.state.time_ns, begins);
  }
  if (findings) {
    ++findings->states;
    if (agrees || is_first) {
      ++findings->agreeing;
    } else if (!seen_.is_known[seen_.state.device]) {
      ++findings->resumed;
    } else if (findings->differences.size() < ReplayFindings::kKept) {
      // Where it describes no memory, it is not compared with all that there is: there may be many such states.
      findings->differences.push_back({seen_.state.sequence, seen_.state.device,
                                       described ? device.difference_to(seen_.state.events) : "a state without sense"});
    }
  }
  if (described) device.adopt(std::move(*described));
  if (agrees || described) {
    seen_.is_known[seen_.state.device] = true;
  } else if (findings) {
    ++findings->void_states;
  }
  seen_.state.events.clear();
  return described.has_value();
}

void Replay::note_loss() {
  seen_.had_loss = true;
  std::fill(seen_.is_known.begin(), seen_.is_known.end(), false);
}

PackedReplay Replay::packed() const {
  const std::size_t forward_bytes = forward_.changed_bytes();
  PackedReplay packed{seen_, forward_.rings(), forward_bytes, {}};
  for (const DeviceMemory& device : devices_) packed.devices.push_back(device.packed());
  return packed;
}

void Replay::unpack(const PackedReplay& packed) {
  seen_ = packed.knowledge;
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
  std::size_t sum = sizeof *this + knowledge.state.events.capacity() * sizeof(Event) + forward_bytes +
                    knowledge.device_of_location.capacity() * sizeof knowledge.device_of_location[0];
  for (const PackedMemory& device : devices) sum += device.bytes();
  return sum;
}

}  // namespace alloctrace
