#include "allocator_rules.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "../format/format.h"

namespace alloctrace {
namespace {

// Where the value of `key` begins in the JSON that the recorder writes, npos where it has none.
std::size_t value_of(const std::string& json, const std::string& key) {
  const std::string name = "\"" + key + "\": ";
  const std::size_t at = json.find(name);
  return at == std::string::npos ? at : at + name.size();
}

const char* read_number(const char* begin, const char* end, std::uint64_t& value) {
  std::uint64_t read = 0;
  const auto [rest, error] = std::from_chars(begin, end, read);
  if (error == std::errc{}) value = read;
  return rest;
}

}  // namespace

void AllocatorSettings::read(const std::string& json) {
  // One of which only the beginning was read says nothing. Those that torch reports have hundreds of bytes.
  if (json.size() > kMaxNameBytes) return;
  const char* const end = json.data() + json.size();
  const auto number = [&](const std::string& key, std::uint64_t& value) {
    const std::size_t at = value_of(json, key);
    if (at != std::string::npos) read_number(json.data() + at, end, value);
  };
  number("max_split_size", max_split_size);
  number("large_segment_size", large_segment_size);
  number("max_non_split_rounding_size", max_non_split_rounding_size);
  const std::size_t threshold = value_of(json, "garbage_collection_threshold");
  if (threshold != std::string::npos) {
    double read = 0;
    if (std::from_chars(json.data() + threshold, end, read).ec == std::errc{}) garbage_collection_threshold = read;
  }
  large_segment_size = std::max(large_segment_size, kSmallSegment);  // a damaged trace may say 0
  const std::size_t expandable = value_of(json, "expandable_segments");
  if (expandable != std::string::npos) expandable_segments = json.compare(expandable, 4, "true") == 0;
  const std::size_t divisions = value_of(json, "roundup_power2_divisions");
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
