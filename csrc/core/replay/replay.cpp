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
  if (location >= context_.device_of_location.size())
    context_.device_of_location.resize(location + std::size_t{1}, SIZE_MAX);
  std::size_t& index = context_.device_of_location[location];
  if (index != SIZE_MAX) return index;
  const Location& place = definitions_->location(location);
  const DeviceMemory* const device = find(place.device_type, place.device_index);
  index = device ? static_cast<std::size_t>(device - devices_.data()) : devices_.size();
  if (!device) {
    devices_.emplace_back(place.device_type, place.device_index, *definitions_);
    context_.is_complete.push_back(!context_.had_loss);
    context_.was_in_use.push_back(false);
  }
  return index;
}

Change Replay::apply(Event& event, std::uint64_t sequence, std::int64_t time_ns, ReplayFindings* findings) {
  context_.time_ns = time_ns;
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
      if (context_.state.left != 0 && device == context_.state.device) discard_state(findings);
      const std::uint32_t forward_stack = event.kind == EventKind::kAlloc ? forward_.consume(event) : 0;
      const char* const problem = devices_[device].apply(event, sequence, time_ns, forward_stack);
      if constexpr (kChecks) devices_[device].check_consistency(sequence);
      if (problem && findings) {
        if (context_.is_complete[device]) {
          ++findings->contradictions;
          if (findings->kept_contradictions.size() < ReplayFindings::kMaxItems) {
            findings->kept_contradictions.push_back({sequence, device, problem});
          }
        } else {
          ++findings->after_loss;
        }
      }
      return {static_cast<std::ptrdiff_t>(device), forward_stack};
    }
    case EventKind::kAllocatorState:
      if (context_.state.left != 0) discard_state(findings);
      context_.state = {device_of(event.location), sequence, AllocatorStateFields(event).entries, time_ns, {}};
      if (context_.state.left != 0) return {};
      break;
    case EventKind::kStateSegment:
    case EventKind::kStateBlock:
      if (context_.state.left == 0 || device_of(event.location) != context_.state.device)
        return {};  // without its first event
      context_.state.events.push_back(event);
      if (--context_.state.left != 0) return {};
      break;
    case EventKind::kLost:
      note_loss();
      return {};
    default:
      return {};
  }
  const bool is_other = finish_state(findings);
  return {static_cast<std::ptrdiff_t>(context_.state.device), 0, is_other};
}

void Replay::discard_state(ReplayFindings* findings) {
  if (findings) ++findings->void_states;
  context_.state.left = 0;
  note_loss();
}

bool Replay::finish_state(ReplayFindings* findings) {
  DeviceMemory& device = devices_[context_.state.device];
  const bool is_first = device.is_untouched();  // the recording began during the run
  if (is_first && !context_.state.events.empty()) context_.was_in_use[context_.state.device] = true;
  const bool is_begin = is_first && context_.is_complete[context_.state.device];
  const bool agrees = device.equals(context_.state.events);
  std::optional<DeviceMemory> described;
  if (!agrees) {
    described =
        device.build_from_state(context_.state.events, context_.state.sequence, context_.state.time_ns, is_begin);
  }
  if (findings) {
    ++findings->states;
    if (agrees || is_first) {
      ++findings->agreeing;
    } else if (!context_.is_complete[context_.state.device]) {
      ++findings->resumed;
    } else if (findings->differences.size() < ReplayFindings::kMaxItems) {
      // A corrupt state is not compared with the device: a trace may contain many, and each would cost a full listing.
      findings->differences.push_back({context_.state.sequence, context_.state.device,
                                       described ? device.difference_to(context_.state.events) : "a corrupt state"});
    }
  }
  if (described) device.replace_with(std::move(*described));
  if (agrees || described) {
    context_.is_complete[context_.state.device] = true;
  } else if (findings) {
    ++findings->void_states;
  }
  context_.state.events.clear();
  return described.has_value();
}

void Replay::note_loss() {
  context_.had_loss = true;
  std::fill(context_.is_complete.begin(), context_.is_complete.end(), false);
}

PackedReplay Replay::packed() const {
  const std::size_t forward_bytes = forward_.changed_bytes();
  PackedReplay packed{context_, forward_.rings(), forward_bytes, {}};
  for (const DeviceMemory& device : devices_) packed.devices.push_back(device.packed());
  return packed;
}

void Replay::unpack(const PackedReplay& packed) {
  context_ = packed.context;
  forward_.restore(packed.forward);
  // Reuse existing devices, and with them their allocated memory.
  while (devices_.size() > packed.devices.size()) devices_.pop_back();
  for (std::size_t index = 0; index < packed.devices.size(); ++index) {
    const PackedMemory& device = packed.devices[index];
    if (index == devices_.size()) devices_.emplace_back(device.device_type, device.device_index, *definitions_);
    devices_[index].unpack(device);
  }
}

std::size_t PackedReplay::bytes() const {
  std::size_t sum = sizeof *this + context.state.events.capacity() * sizeof(Event) + forward_bytes +
                    context.device_of_location.capacity() * sizeof context.device_of_location[0];
  for (const PackedMemory& device : devices) sum += sizeof device + device.bytes.capacity();
  return sum;
}

}  // namespace alloctrace
