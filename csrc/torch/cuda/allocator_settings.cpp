#include "allocator_settings.h"

#include <array>
#include <limits>
#include <locale>
#include <sstream>

#include "rounding_divisions.h"
#include "torch_release.h"

namespace alloctrace::torch_side {
namespace {

struct Settings {
  std::uint64_t session = 0;
  std::size_t large_segment_size = 0, max_split_size = 0, max_non_split_rounding_size = 0;
  double garbage_collection_threshold = 0;
  bool expandable_segments = false, stream_reuse_in_capture = false;
  RoundingDivisions roundup_power2_divisions{};

  // The settings by which a block of that size is cut. The others decide which block is taken or which segment is made,
  // which events show anyway; they are compared when a segment is made.
  bool cuts_as_present(std::size_t size) const {
    return same_rounding_divisions<SharedConfig>(roundup_power2_divisions, size) &&
           (size <= kSmallRequest || splits_as_present());
  }
  bool splits_as_present() const {
    return expandable_segments == torch_side::expandable_segments() && max_split_size == SharedConfig::max_split_size();
  }
  bool is_present(std::size_t size) const {
    return cuts_as_present(size) && splits_as_present() && large_segment_size == torch_side::large_segment_size() &&
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

// As small_requests.
Settings& last_seen(int device) {
  static std::array<Settings, std::numeric_limits<c10::DeviceIndex>::max() + 1> settings;
  return settings[static_cast<std::size_t>(device)];
}

}  // namespace

constinit decltype(small_requests) small_requests{};
static_assert(small_requests.size() == std::numeric_limits<c10::DeviceIndex>::max() + 1);

bool compare_cuda_settings(int device, std::uint64_t session, std::size_t size, bool makes_segment) {
  Settings& last = last_seen(device);
  if (last.session == session && (makes_segment ? last.is_present(size) : last.cuts_as_present(size))) return false;
  last.session = session;
  last.read();
  small_requests[static_cast<std::size_t>(device)] = {session, divisions_now<SharedConfig>(),
                                                      last.roundup_power2_divisions[0]};
  return true;
}

std::string cuda_settings_text(int device) {
  const Settings& settings = last_seen(device);
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << std::boolalpha << "{\"expandable_segments\": " << settings.expandable_segments;
  if (kHasLargeSegmentSize) text << ", \"large_segment_size\": " << settings.large_segment_size;
  text << ", \"max_split_size\": " << settings.max_split_size
       << ", \"max_non_split_rounding_size\": " << settings.max_non_split_rounding_size
       << ", \"garbage_collection_threshold\": " << settings.garbage_collection_threshold
       << ", \"graph_capture_record_stream_reuse\": " << settings.stream_reuse_in_capture
       << ", \"roundup_power2_divisions\": [";
  const char* separator = "";
  for (const std::size_t division : settings.roundup_power2_divisions) {
    text << separator << division;
    separator = ", ";
  }
  text << "]}";
  return text.str();
}

}  // namespace alloctrace::torch_side
