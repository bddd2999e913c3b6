#include "allocator_rules.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "../format/format.h"

namespace alloctrace {
namespace {

// Return the position of a key's value in the recorder's JSON, or npos.
std::size_t find_value(const std::string& json, const std::string& key) {
  const std::string name = "\"" + key + "\": ";
  const std::size_t at = json.find(name);
  return at == std::string::npos ? at : at + name.size();
}

const char* read_number(const char* begin, const char* end, std::uint64_t& value) {
  std::uint64_t number = 0;
  const auto [rest, error] = std::from_chars(begin, end, number);
  if (error == std::errc{}) value = number;
  return rest;
}

}  // namespace

void AllocatorSettings::read(const std::string& json) {
  // The text was truncated on reading. torch's settings have hundreds of bytes.
  if (json.size() > kMaxNameBytes) return;
  const char* const end = json.data() + json.size();
  const auto update = [&](const std::string& key, std::uint64_t& value) {
    const std::size_t at = find_value(json, key);
    if (at != std::string::npos) read_number(json.data() + at, end, value);
  };
  update("max_split_size", max_split_size);
  update("large_segment_size", large_segment_size);
  update("max_non_split_rounding_size", max_non_split_rounding_size);
  const std::size_t threshold = find_value(json, "garbage_collection_threshold");
  if (threshold != std::string::npos) {
    double share = 0;
    if (std::from_chars(json.data() + threshold, end, share).ec == std::errc{}) garbage_collection_threshold = share;
  }
  clamp();
  const std::size_t expandable = find_value(json, "expandable_segments");
  if (expandable != std::string::npos) expandable_segments = json.compare(expandable, 4, "true") == 0;
  const std::size_t divisions = find_value(json, "roundup_power2_divisions");
  if (divisions == std::string::npos) return;
  const char* at = json.data() + divisions;
  for (std::uint64_t& division : roundup_power2_divisions) {
    while (at != end && (*at == '[' || *at == ',' || *at == ' ')) ++at;
    if (at == end || *at == ']') break;
    at = read_number(at, end, division);
  }
}

std::uint64_t AllocatorSettings::rounded(std::uint64_t bytes) const {
  if (bytes < kMinimumBlock) return kMinimumBlock;
  const int log = std::bit_width(bytes) - 1;
  const int interval = std::clamp(log - 20, 0, static_cast<int>(kIntervals) - 1);
  const std::uint64_t divisions = roundup_power2_divisions[static_cast<std::size_t>(interval)];
  if (divisions <= 1 || bytes <= kMinimumBlock * divisions) {
    return (bytes + kMinimumBlock - 1) / kMinimumBlock * kMinimumBlock;
  }
  if (std::has_single_bit(bytes)) return bytes;
  const std::uint64_t floor = std::uint64_t{1} << log;
  const std::uint64_t step = floor >> (std::bit_width(divisions) - 1);
  if (step == 0) return floor << 1;
  return (bytes + step - 1) / step * step;
}

}  // namespace alloctrace
