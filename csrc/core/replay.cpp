#include "replay.h"

#include <algorithm>

namespace alloctrace {

const DeviceMemory* Replay::find(std::int32_t device_type, std::int32_t device_index) const {
  for (const DeviceMemory& device : devices_) {
    if (device.device_type() == device_type && device.device_index() == device_index) return &device;
  }
  return nullptr;
}

std::size_t Replay::device_of(std::uint32_t place) {
  if (place >= device_of_place_.size()) device_of_place_.resize(place + std::size_t{1}, SIZE_MAX);
  std::size_t& index = device_of_place_[place];
  if (index != SIZE_MAX) return index;
  const Place& where = definitions_->place(place);
  const DeviceMemory* const known = find(where.device_type, where.device_index);
  index = known ? static_cast<std::size_t>(known - devices_.data()) : devices_.size();
  if (!known) {
    devices_.emplace_back(where.device_type, where.device_index, *definitions_);
    is_known_.push_back(!had_loss_);
    was_in_use_.push_back(false);
  }
  return index;
}

std::ptrdiff_t Replay::apply(const Event& event, std::uint64_t sequence, std::int64_t time_ns,
                             ReplayFindings* findings) {
  time_ns_ = time_ns;
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
      const std::size_t device = device_of(event.place);
      if (state_.left != 0 && device == state_.device) void_state(findings);
      const char* const problem = devices_[device].apply(event, sequence, time_ns);
      if (problem && findings) {
        if (is_known_[device]) {
          ++findings->contradictions;
          if (findings->kept_contradictions.size() < ReplayFindings::kKept) {
            findings->kept_contradictions.push_back({sequence, device, problem});
          }
        } else {
          ++findings->after_loss;
        }
      }
      return static_cast<std::ptrdiff_t>(device);
    }
    case EventKind::kAllocatorState:
      if (state_.left != 0) void_state(findings);
      state_ = {device_of(event.place), sequence, event.size, time_ns, {}};
      if (state_.left != 0) return -1;
      break;
    case EventKind::kStateSegment:
    case EventKind::kStateBlock:
      if (state_.left == 0 || device_of(event.place) != state_.device) return -1;  // its beginning is missing
      state_.events.push_back(event);
      if (--state_.left != 0) return -1;
      break;
    case EventKind::kLost:
      note_loss();
      return -1;
    default:
      return -1;
  }
  end_state(findings);
  return static_cast<std::ptrdiff_t>(state_.device);
}

// Events of it are missing.
void Replay::void_state(ReplayFindings* findings) {
  if (findings) ++findings->void_states;
  state_.left = 0;
  note_loss();
}

void Replay::end_state(ReplayFindings* findings) {
  DeviceMemory& device = devices_[state_.device];
  const bool is_first = device.is_untouched();  // a recording that began in mid-run
  if (is_first && !state_.events.empty()) was_in_use_[state_.device] = true;
  const std::string difference = device.difference_to(state_.events);
  if (findings) {
    ++findings->states;
    if (difference.empty() || is_first) {
      ++findings->agreeing;
    } else if (!is_known_[state_.device]) {
      ++findings->resumed;
    } else if (findings->differences.size() < ReplayFindings::kKept) {
      findings->differences.push_back({state_.sequence, state_.device, difference});
    }
  }
  if (difference.empty() || device.adopt(state_.events, state_.sequence, state_.time_ns)) {
    is_known_[state_.device] = true;
  } else if (findings) {
    ++findings->void_states;
  }
  state_.events.clear();
}

void Replay::note_loss() {
  had_loss_ = true;
  std::fill(is_known_.begin(), is_known_.end(), false);
}

void Replay::pack() {
  for (DeviceMemory& device : devices_) device.pack();
}

void Replay::unpack() {
  for (DeviceMemory& device : devices_) device.unpack();
}

std::size_t Replay::memory_bytes() const {
  std::size_t bytes = sizeof *this + state_.events.capacity() * sizeof(Event);
  for (const DeviceMemory& device : devices_) bytes += device.memory_bytes();
  return bytes;
}

}  // namespace alloctrace
