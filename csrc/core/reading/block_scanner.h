// Scanner of the blocks of a trace file, complete, corrupt, or still written. Header and payload of a block have their
// own checksums: after corrupt bytes the scanner searches for the next header.
#pragma once

#include <cstdint>
#include <string>

#include "../base/input_file.h"
#include "../base/varint.h"
#include "../format/format.h"

namespace alloctrace {

// Return whether the magic and the checksum of a file header match. If not, its other fields are meaningless.
bool is_valid(const FileHeader& header);
// Throw FormatError if a valid header has a newer format version than this code reads.
void check_version(const FileHeader& header, const std::string& path);
// Throw FormatError if the compacted part of a trace has another version than this code replays.
void check_compaction_version(std::uint64_t version, const std::string& path);
// Replace each total by the larger of two: totals only grow, so the larger one is the later one.
void merge_counters(Counters& totals, const Counters& seen);

// A block in the file.
struct FileBlock {
  BlockHeader header;
  Bytes payload;
  std::uint64_t offset = 0;  // of the header in the file

  std::uint64_t payload_offset() const { return offset + sizeof header; }
  std::uint64_t end() const { return payload_offset() + header.payload_bytes; }
};

enum class FileBlockState : std::uint8_t { kComplete, kNoHeader, kBeyondEnd, kCorruptPayload };

class BlockScanner {
 public:
  explicit BlockScanner(const InputFile& file) : file_(&file) {}

  // Read the block at an offset. In state kNoHeader, block.header is meaningless; in state kBeyondEnd, the payload,
  // which ends after the file, is not read.
  FileBlockState read(std::uint64_t offset, FileBlock& block);
  // Return the offset of the next valid block header from `offset` on, or `end` if there is none before `end`. Takes
  // time in proportion to the distance.
  std::uint64_t find_header(std::uint64_t offset, std::uint64_t end) const;
  // Return whether the scan should end: in a crafted file each of many headers may claim the rest of the file, and
  // reading all these payloads would take hours.
  bool has_wasted_too_much() const { return wasted_bytes_ / kMaxWastedFactor > file_->size(); }
  // Forget the wasted bytes, before another scan of a file that has grown.
  void renew_budget() { wasted_bytes_ = 0; }
  // Take a complete block; return whether it may follow those before it: a file has one compacted part at most, before
  // its first block of events.
  bool accept(const BlockHeader& header);

 private:
  static constexpr std::uint64_t kMaxWastedFactor = 16;  // maximum bytes of corrupt payloads read, in file sizes

  bool read_header(std::uint64_t offset, BlockHeader& header) const;

  const InputFile* file_;
  std::uint64_t wasted_bytes_ = 0;
  bool may_be_compacted_ = true;  // a compacted part may still follow
};

}  // namespace alloctrace
