#include "block_scanner.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "../base/crc32.h"
#include "read_errors.h"

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

void check_compaction_version(std::uint64_t version, const std::string& path) {
  if (version == CompactionSummary::kVersion) return;
  throw FormatError(
      path + " was compacted by another version of pytorch_alloctrace (its compacted part is of version " +
      std::to_string(version) + ", this one replays version " + std::to_string(CompactionSummary::kVersion) +
      "): read it with the version that compacted it, or compact the whole trace again");
}

void merge_counters(Counters& totals, const Counters& seen) {
  const auto raise = [](std::uint64_t& total, std::uint64_t other) { total = std::max(total, other); };
  for (std::size_t cause = 0; cause < kLossCauseCount; ++cause) raise(totals.lost[cause], seen.lost[cause]);
  raise(totals.empty_allocations, seen.empty_allocations);
  raise(totals.reentered, seen.reentered);
  raise(totals.unknown_stacks, seen.unknown_stacks);
}

bool BlockScanner::read_header(std::uint64_t offset, BlockHeader& header) const {
  if (offset + sizeof header > file_->size() || !file_->read(&header, sizeof header, offset)) return false;
  const std::size_t unchecked = offsetof(BlockHeader, header_crc) + sizeof header.header_crc;
  return header.magic == kBlockMagic &&
         header.header_crc ==
             crc32(reinterpret_cast<const std::uint8_t*>(&header) + unchecked, sizeof header - unchecked) &&
         header.payload_bytes <= kMaxPayloadBytes && header.first_sequence <= kMaxSequence &&
         header.event_count <= kMaxSequence;
}

FileBlockState BlockScanner::read(std::uint64_t offset, FileBlock& block) {
  block.offset = offset;
  block.payload.clear();
  if (!read_header(offset, block.header)) return FileBlockState::kNoHeader;
  if (block.header.payload_bytes > file_->size() - block.payload_offset()) return FileBlockState::kBeyondEnd;
  block.payload.resize(block.header.payload_bytes);
  if (file_->read(block.payload.data(), block.payload.size(), block.payload_offset()) &&
      crc32(block.payload.data(), block.payload.size()) == block.header.payload_crc) {
    return FileBlockState::kComplete;
  }
  wasted_bytes_ += block.payload.size();
  return FileBlockState::kCorruptPayload;
}

std::uint64_t BlockScanner::find_header(std::uint64_t offset, std::uint64_t end) const {
  constexpr std::uint64_t kFirstWindow = std::uint64_t{1} << 10, kLargestWindow = std::uint64_t{1} << 20;
  Bytes window;
  for (std::uint64_t bytes = kFirstWindow; offset < end; offset += bytes, bytes = std::min(2 * bytes, kLargestWindow)) {
    // Windows overlap by the magic's length less one: a magic across a border is found.
    window.resize(std::min<std::uint64_t>(bytes + sizeof kBlockMagic - 1, end - offset));
    if (!file_->read(window.data(), window.size(), offset)) break;
    for (std::size_t at = 0; at + sizeof kBlockMagic <= window.size(); ++at) {
      BlockHeader header;
      if (std::memcmp(window.data() + at, &kBlockMagic, sizeof kBlockMagic) == 0 && read_header(offset + at, header)) {
        return offset + at;
      }
    }
  }
  return end;
}

bool BlockScanner::accept(const BlockHeader& header) {
  if (header.type == BlockType::kCompacted && !may_be_compacted_) return false;
  may_be_compacted_ = may_be_compacted_ && header.type != BlockType::kCompacted && header.type != BlockType::kEvents &&
                      header.first_sequence == 0;
  return true;
}

}  // namespace alloctrace
