// The trace file, byte for byte: a file header, then blocks. Little-endian throughout. docs/trace-format.md is the same
// for people; the two change together.
//
//   FileHeader | BlockHeader payload | BlockHeader payload | ...
//
// Every block carries its own checksums and clock anchors and can be read without the ones before it, so a damaged
// or cut file loses only the blocks that the damage touches.
#pragma once

#include <cstdint>

#include "../base/clock.h"
#include "event.h"

namespace alloctrace {

constexpr char kFileMagic[8] = {'A', 'L', 'L', 'O', 'C', 'T', 'R', 'C'};
// Of older recorders, which wrote two events for each free of the caching allocator: their readers would take one that
// completes without having been requested for a contradiction.
constexpr std::uint32_t kFirstFormatVersion = 1;
constexpr std::uint32_t kFormatVersion = 3;
// Of a trace that begins with a fold: whoever skips that would take its events for missing. 2 was the same of
// version 1.
constexpr std::uint32_t kFoldedFormatVersion = 4;

struct FileHeader {
  char magic[8];
  std::uint32_t format_version;
  std::uint32_t header_crc;     // of this header with this field as 0: tells a newer format from a damaged number
  std::uint8_t session_id[16];  // random; the spool of the same recording carries the same
};
static_assert(sizeof(FileHeader) == 32);

enum class BlockType : std::uint16_t {
  kHeader = 1,       // payload: JSON object, UTF-8: the program, its versions, devices and paths
  kDefinitions = 2,  // payload: definition records (definitions.h) not written before
  kDictionary = 3,   // payload: all definition records so far, repeated, so that no damage elsewhere loses names
  kEvents = 4,       // payload: events (event_codec.h)
  kEnd = 5,          // payload: JSON object; the recording was stopped in good order
  kFold = 6,         // payload: what is left of all events before this block (fold.h); before any events
};

constexpr std::uint32_t kBlockMagic = 0x4B425441;  // "ATBK": where a reader takes up again after damage
constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 32;
// No recording has so many events: a billion a second, for a century. Sums of two such numbers do not overflow.
constexpr std::uint64_t kMaxSequence = std::uint64_t{1} << 62;
// No process has more devices: each costs memory of its own in a reader.
constexpr std::size_t kMaxDevices = 80;
constexpr std::int64_t kMaxDeviceIndex = 127;  // torch's type of an index has eight bits
// No block or segment is larger: the addresses of a process have no more bits.
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 57;

// In bytes. No path is longer; a name that many rows repeat must not make gigabytes of a megabyte.
constexpr std::size_t kLongestName = 4096;

// No stack has more frames: the recorder keeps the innermost ones of those that are deeper.
constexpr std::uint32_t kMaxStackDepth = 4096;

// Totals since the recording began, at the moment that the block was written.
struct Counters {
  std::uint64_t lost[kLossCauseCount];
  std::uint64_t empty_allocations;  // of zero bytes: they have no address and are not events
  std::uint64_t reentered;          // allocations made by our own code inside the hook, not recorded
  std::uint64_t unknown_stacks;     // events whose stack could not be stored
};

struct BlockHeader {
  std::uint32_t magic;
  std::uint32_t header_crc;  // of all bytes of this header after this field
  std::uint32_t payload_crc;
  BlockType type;
  std::uint16_t reserved;
  std::uint64_t payload_bytes;
  std::uint64_t first_sequence;  // number of the first event of this block; of other blocks: of the next event
  std::uint64_t event_count;
  ClockAnchor begin;  // at the end of the block before
  ClockAnchor end;    // when this block was made
  Counters counters;
};
static_assert(sizeof(BlockHeader) == 136);

// The spool: the ring of events and the log of definitions that are not in the file yet, shared with the file system so
// that they outlive a killed process. Offsets are from the start of the spool.
constexpr char kSpoolMagic[8] = {'A', 'L', 'L', 'O', 'C', 'S', 'P', 'L'};

}  // namespace alloctrace
