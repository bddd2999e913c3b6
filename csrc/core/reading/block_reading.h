// What everyone who reads blocks holds them to.
#pragma once

#include <cstdint>
#include <string>

#include "../base/clock.h"
#include "../base/input_file.h"
#include "../format/format.h"

namespace alloctrace {

// Returns whether the magic and the checksum of a file's header fit: its other fields mean nothing if not.
bool is_sound(const FileHeader& header);
// Throws FormatError if a sound header has a newer version than this code reads.
void check_version(const FileHeader& header, const std::string& path);
// Reads the block header at an offset; returns false if its checksum or its bounds do not fit.
bool read_block_header(const InputFile& file, std::uint64_t offset, BlockHeader& header);
// Returns whether a fold may come after this block. It stands for all events before it: there is one at most, before
// any block of events.
bool may_precede_fold(const BlockHeader& header);
// The anchors of a spool have no checksum: arithmetic on one that is damaged must not overflow.
bool is_possible(const ClockAnchor& anchor);
// Totals only grow; the larger is the later.
void take_later(Counters& known, const Counters& seen);

}  // namespace alloctrace
