#include "block_reading.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "../base/crc32.h"
#include "trace_reader.h"

namespace alloctrace {

bool is_valid(const FileHeader& header) {
  FileHeader unchecked = header;
  unchecked.header_crc = 0;
  return std::memcmp(header.magic, kFileMagic, sizeof kFileMagic) == 0 &&
         header.header_crc == crc32(&unchecked, sizeof unchecked);
}

void check_version(const FileHeader& header, const std::string& path) {
  if (header.format_version <= kCompactedFormatVersion) return;
  throw FormatError(path + " is of trace format " + std::to_string(header.format_version) +
                    ", newer than this version of pytorch_alloctrace reads (" +
                    std::to_string(kCompactedFormatVersion) + "): upgrade pytorch_alloctrace");
}

bool read_block_header(const InputFile& file, std::uint64_t offset, BlockHeader& header) {
  if (offset + sizeof header > file.size() || !file.read(&header, sizeof header, offset)) return false;
  const std::size_t unchecked = offsetof(BlockHeader, header_crc) + sizeof header.header_crc;
  return header.magic == kBlockMagic &&
         header.header_crc ==
             crc32(reinterpret_cast<const std::uint8_t*>(&header) + unchecked, sizeof header - unchecked) &&
         header.payload_bytes <= kMaxPayloadBytes && header.first_sequence <= kMaxSequence &&
         header.event_count <= kMaxSequence;
}

bool may_precede_compacted(const BlockHeader& header) {
  return header.type != BlockType::kCompacted && header.type != BlockType::kEvents && header.first_sequence == 0;
}

bool is_plausible(const ClockAnchor& anchor) {
  constexpr std::uint64_t kImpossible = std::uint64_t{1} << 61;  // ns, 73 years
  return anchor.monotonic_ns < kImpossible && anchor.wall_ns < 2 * kImpossible;
}

void merge_counters(Counters& totals, const Counters& seen) {
  const auto raise = [](std::uint64_t& total, std::uint64_t other) { total = std::max(total, other); };
  for (std::size_t cause = 0; cause < kLossCauseCount; ++cause) raise(totals.lost[cause], seen.lost[cause]);
  raise(totals.empty_allocations, seen.empty_allocations);
  raise(totals.reentered, seen.reentered);
  raise(totals.unknown_stacks, seen.unknown_stacks);
}

}  // namespace alloctrace
