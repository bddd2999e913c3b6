// Layout of the trace file, little-endian. docs/trace-format.md describes the same; change both together.
//
//   FileHeader | BlockHeader payload | BlockHeader payload | ...
//
// Every block has its own checksums and clock anchors and is readable without the blocks before it, so corruption or
// truncation loses only the blocks that it touches.
#pragma once

#include <cstdint>

#include "../base/clock.h"
#include "event.h"

namespace alloctrace {

constexpr char kFileMagic[8] = {'A', 'L', 'L', 'O', 'C', 'T', 'R', 'C'};
// Version of older recorders, which wrote two events for each free of the caching allocator. Their readers would report
// a free that completes without having been requested as a contradiction.
constexpr std::uint32_t kFirstFormatVersion = 1;
constexpr std::uint32_t kFormatVersion = 3;
// Version of a compacted trace: older readers would report the compacted events as missing. 2: compacted version 1.
constexpr std::uint32_t kCompactedFormatVersion = 4;

struct FileHeader {
  char magic[8];
  std::uint32_t format_version;
  std::uint32_t header_crc;     // of this header with this field as 0: separates a newer version from a corrupt one
  std::uint8_t session_id[16];  // random; equal in the spool of the same recording
};
static_assert(sizeof(FileHeader) == 32);

enum class BlockType : std::uint16_t {
  kHeader = 1,       // payload: JSON object, UTF-8: the program, its versions, devices and paths
  kDefinitions = 2,  // payload: definition records (definitions.h) not written before
  kDictionary = 3,   // payload: all definition records so far, repeated: corruption elsewhere loses no names
  kEvents = 4,       // payload: events (event_codec.h)
  kEnd = 5,          // payload: JSON object; the recording was stopped normally
  kCompacted = 6,    // payload: the compacted part (fold.h), in place of all events before; precedes any events
};

constexpr std::uint32_t kBlockMagic = 0x4B425441;  // "ATBK": where a reader resumes after corruption
constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 32;
// Maximum number of events: a billion a second for a century. The sum of two such numbers does not overflow.
constexpr std::uint64_t kMaxSequence = std::uint64_t{1} << 62;
// Maximum number of devices of a process: a reader spends memory on each.
constexpr std::size_t kMaxDevices = 80;
constexpr std::int64_t kMaxDeviceIndex = 127;  // torch's DeviceIndex has eight bits
// Maximum bytes of a block or segment: a process's addresses have no more bits.
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 57;

// Maximum bytes of a name, longer than any path: a name in many rows must not turn a megabyte into gigabytes.
constexpr std::size_t kMaxNameBytes = 4096;

// Maximum number of frames of a stack: the recorder drops the outermost frames of deeper stacks.
constexpr std::uint32_t kMaxStackDepth = 4096;

// Totals from the start of the recording to the time at which the block was written.
struct Counters {
  std::uint64_t lost[kLossCauseCount];
  std::uint64_t empty_allocations;  // of zero bytes: without address and event
  std::uint64_t reentered;          // allocations by the recorder's own code inside the hook, not recorded
  std::uint64_t unknown_stacks;     // events whose stack could not be stored
};

struct BlockHeader {
  std::uint32_t magic;
  std::uint32_t header_crc;  // of all bytes of this header after this field
  std::uint32_t payload_crc;
  BlockType type;
  std::uint16_t reserved;
  std::uint64_t payload_bytes;
  std::uint64_t first_sequence;  // number of the block's first event; without events: of the next event
  std::uint64_t event_count;
  ClockAnchor begin;  // the end of the previous block
  ClockAnchor end;    // when this block was written
  Counters counters;
};
static_assert(sizeof(BlockHeader) == 136);

// Spool: ring of events and log of definitions not yet in the file, mapped so that both outlive a killed process.
constexpr char kSpoolMagic[8] = {'A', 'L', 'L', 'O', 'C', 'S', 'P', 'L'};

}  // namespace alloctrace
