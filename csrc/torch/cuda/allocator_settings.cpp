#include "allocator_settings.h"

#include <array>
#include <charconv>
#include <limits>

#include "torch_release.h"

namespace alloctrace::torch_side {
namespace {

struct Settings {
  std::uint64_t session = 0;
  std::size_t large_segment_size = 0, max_split_size = 0, max_non_split_rounding_size = 0;
  double garbage_collection_threshold = 0;
  bool expandable_segments = false, stream_reuse_in_capture = false;
  RoundingDivisions roundup_power2_divisions{};

  // Compare the settings that decide how a block of `size` bytes is cut. The others decide which block or segment is
  // used, which events show anyway: they are compared when a segment is created.
  bool cuts_equally(std::size_t size) const {
    return same_rounding_divisions<SharedConfig>(roundup_power2_divisions, size) &&
           (size <= kMaxSmallRequest || splits_equally());
  }
  bool splits_equally() const {
    return expandable_segments == torch_side::expandable_segments() && max_split_size == SharedConfig::max_split_size();
  }
  bool is_current(std::size_t size) const {
    return cuts_equally(size) && splits_equally() && large_segment_size == torch_side::large_segment_size() &&
           max_non_split_rounding_size == SharedConfig::max_non_split_rounding_size() &&
           garbage_collection_threshold == SharedConfig::garbage_collection_threshold() &&
           stream_reuse_in_capture == native::CUDAAllocatorConfig::graph_capture_record_stream_reuse();
  }
  void read() {
    expandable_segments = torch_side::expandable_segments();
    max_split_size = SharedConfig::max_split_size();
    large_segment_size = torch_side::large_segment_size();
    max_non_split_rounding_size = SharedConfig::max_non_split_rounding_size();
    garbage_collection_threshold = SharedConfig::garbage_collection_threshold();
    stream_reuse_in_capture = native::CUDAAllocatorConfig::graph_capture_record_stream_reuse();
    roundup_power2_divisions = read_rounding_divisions<SharedConfig>();
  }
};

// Return the settings last read for a device. Call under the device's lock only.
Settings& last_settings(int device) {
  static std::array<Settings, std::numeric_limits<c10::DeviceIndex>::max() + 1> settings;
  return settings[static_cast<std::size_t>(device)];
}

// JSON without C++ streams. If libstdc++ is linked statically, the recorder shares the table of locale facets with the
// program's copy, and the first number printed by a stream calls the wrong function.
void add_value(std::string& text, bool value) { text += value ? "true" : "false"; }

template <typename Number>
void add_value(std::string& text, Number value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  text.append(digits.data(), end);
}

template <typename Value>
void add_field(std::string& text, const char* name, Value value) {
  if (text.size() > 1) text += ", ";
  text.append(1, '"').append(name).append("\": ");
  add_value(text, value);
}

}  // namespace

constinit decltype(small_requests) small_requests{};
static_assert(small_requests.size() == std::numeric_limits<c10::DeviceIndex>::max() + 1);

bool compare_all_cuda_settings(int device, std::uint64_t session, std::size_t size, bool creates_segment) {
  Settings& last = last_settings(device);
  if (last.session == session && (creates_segment ? last.is_current(size) : last.cuts_equally(size))) return false;
  last.session = session;
  last.read();
  small_requests[static_cast<std::size_t>(device)] = {session, current_rounding_divisions<SharedConfig>(),
                                                      last.roundup_power2_divisions[0]};
  return true;
}

std::string cuda_settings_text(int device) {
  const Settings& settings = last_settings(device);
  std::string text = "{";
  add_field(text, "expandable_segments", settings.expandable_segments);
  if (kHasLargeSegmentSize) add_field(text, "large_segment_size", settings.large_segment_size);
  add_field(text, "max_split_size", settings.max_split_size);
  add_field(text, "max_non_split_rounding_size", settings.max_non_split_rounding_size);
  add_field(text, "garbage_collection_threshold", settings.garbage_collection_threshold);
  add_field(text, "graph_capture_record_stream_reuse", settings.stream_reuse_in_capture);
  text += ", \"roundup_power2_divisions\": [";
  const char* separator = "";
  for (const std::size_t division : settings.roundup_power2_divisions) {
    text += separator;
    add_value(text, division);
    separator = ", ";
  }
  return text += "]}";
}

}  // namespace alloctrace::torch_side
