// Checks shared by all block readers.
#pragma once

#include <cstdint>
#include <string>

#include "../base/clock.h"
#include "../base/input_file.h"
#include "../format/format.h"

namespace alloctrace {

// Return whether the magic and the checksum of a file header match. If not, its other fields are meaningless.
bool is_valid(const FileHeader& header);
// Throw FormatError if a valid header has a newer format version than this code reads.
void check_version(const FileHeader& header, const std::string& path);
// Read the block header at an offset; returns false if its checksum does not match or a field is out of bounds.
bool read_block_header(const InputFile& file, std::uint64_t offset, BlockHeader& header);
// Return whether a compacted part may follow this block: a file has one at most, before its first block of events.
bool may_precede_compacted(const BlockHeader& header);
// Return whether arithmetic on the anchor cannot overflow. The anchors of a spool have no checksum and may be corrupt.
bool is_plausible(const ClockAnchor& anchor);
// Replace each total by the larger of two: totals only grow, so the larger one is the later one.
void merge_counters(Counters& totals, const Counters& seen);

}  // namespace alloctrace
