// What everyone who reads blocks holds them to.
#pragma once

#include <cstdint>
#include <string>

#include "../base/clock.h"
#include "../base/input_file.h"
#include "../format/format.h"

namespace alloctrace {

// Whether a file's header is whole: else none of its fields means anything.
bool is_sound(const FileHeader& header);
// Of a sound one. Throws FormatError where the file is newer than what this code reads.
void check_version(const FileHeader& header, const std::string& path);
// Whether there is a sound header of a block at an offset.
bool read_block_header(const InputFile& file, std::uint64_t offset, BlockHeader& header);
// The anchors of a spool have no checksum: arithmetic on one that is damaged must not overflow.
bool is_possible(const ClockAnchor& anchor);
// Totals only grow; the larger is the later.
void take_later(Counters& known, const Counters& seen);

}  // namespace alloctrace
