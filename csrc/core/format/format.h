// Layout of the trace file, little-endian. docs/trace-format.md describes the same; change both together.
//
//   FileHeader | BlockHeader payload | BlockHeader payload | ...
//
// Every block has its own checksums and clock anchors and is readable without the blocks before it, so corruption or
// truncation loses only the blocks that it touches.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../base/clock.h"
#include "../base/process_identity.h"
#include "../base/varint.h"
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
  kCompacted = 6,    // payload: the compacted part, in place of all events before; precedes any events
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

// Spool: a file that the recorder maps, so that what is not in the trace yet outlives a killed process:
//
//   SpoolHeader (one page) | ring of events | ring of definition bytes
constexpr char kSpoolMagic[8] = {'A', 'L', 'L', 'O', 'C', 'S', 'P', 'L'};

// Positions in the definition log, in bytes since its start; modulo capacity the offset in the ring. File format.
struct DefinitionLogState {
  std::atomic<std::uint64_t> head;  // all bytes before it are complete
  std::atomic<std::uint64_t> tail;  // all bytes before it are in the trace file
};

// Return the commit word of a complete event at a position.
constexpr std::uint32_t commit_mark(std::uint64_t position) { return static_cast<std::uint32_t>(position + 1); }
// Flipped in the mark of a free_requested whose free completed at once: one free_completed event replaces both.
constexpr std::uint32_t kCompletedBit = std::uint32_t{1} << 31;
// Flipped in the mark of a free_requested that the writer has consumed: kCompletedBit must not be flipped any more.
constexpr std::uint32_t kConsumedBit = std::uint32_t{1} << 30;
// Maximum ring capacity: in a larger ring a mark with a flipped bit could equal a mark of the previous round.
constexpr std::uint64_t kMaxRingEvents = std::uint64_t{1} << 29;

struct SpoolHeader {
  char magic[8];
  std::uint32_t format_version;
  std::uint32_t event_bytes;  // sizeof(Event)
  std::uint8_t session_id[16];
  std::uint64_t ring_offset, ring_capacity;                // from the start of the file; in events, a power of two
  std::uint64_t definitions_offset, definitions_capacity;  // from the start of the file; in bytes
  std::uint64_t process_id;

  // Latest clock anchor, in two copies; `anchor_index` selects the complete one.
  ClockAnchor anchors[2];
  std::atomic<std::uint32_t> anchor_index;

  // Positions in events since the beginning: the events' sequence numbers.
  alignas(64) std::atomic<std::uint64_t> head;  // claimed by hooks
  std::uint64_t head_mark;                      // kSpoolMark; 0 if the file was truncated at or before this field
  alignas(64) std::atomic<std::uint64_t> tail;  // all events before it are in the trace file
  DefinitionLogState definitions;

  alignas(64) std::atomic<std::uint64_t> lost[kLossCauseCount];
  std::atomic<std::uint64_t> lost_unreported[kLossCauseCount];  // not yet reported by a `lost` event
  std::atomic<std::uint64_t> empty_allocations, reentered, unknown_stacks;

  ProcessIdentity recorder;     // zero in the spools of older recorders
  std::uint64_t counters_mark;  // as head_mark, for `lost` to `unknown_stacks`
};
constexpr std::size_t kSpoolHeaderBytes = 4096;
constexpr std::uint64_t kSpoolMark = ~std::uint64_t{0};
static_assert(sizeof(SpoolHeader) <= kSpoolHeaderBytes);

// Compacted part at the start of a trace: a summary for every reader, then what the replay reads
// (replay/compacted_state.h).
struct CompactionSummary {
  // Version of the payload after the summary. The summary itself changes only by fields added at its end.
  static constexpr std::uint64_t kVersion = 2;

  std::uint64_t version = kVersion;
  std::uint64_t until = 0;    // the first event that is not compacted
  std::int64_t time_ns = 0;   // wall time of the last compacted event
  std::uint64_t events = 0;   // number of compacted events, as far as readable
  std::uint64_t missing = 0;  // number of unreadable events: the other numbers below `until`
  // Corruption in the part of the file that was compacted.
  std::uint64_t corrupt_blocks = 0, corrupt_bytes = 0;
  // Size limit on all files of a recording that compacts its own trace, and whether the limit was exceeded.
  std::uint64_t max_bytes = 0;
  bool is_exceeded = false;
  // Duration whose events were to stay uncompacted at the end, and whether lack of room shortened it.
  std::uint64_t keep_ns = 0;
  bool keeps_less = false;

  void put(Bytes& out) const {
    Bytes fields;
    put_varint(fields, until);
    put_varint(fields, zigzag(time_ns));
    put_varint(fields, events);
    put_varint(fields, missing);
    put_varint(fields, corrupt_blocks);
    put_varint(fields, corrupt_bytes);
    put_varint(fields, max_bytes);
    put_varint(fields, is_exceeded ? 1 : 0);
    put_varint(fields, keep_ns);
    put_varint(fields, keeps_less ? 1 : 0);
    put_varint(out, kVersion);
    put_varint(out, fields.size());
    out.insert(out.end(), fields.begin(), fields.end());
  }
  // Read a summary, up to its end. first_sequence: of the block's header. Throws DecodeError.
  static CompactionSummary read(ByteReader& reader, std::uint64_t first_sequence) {
    const std::uint64_t version = reader.varint();
    const std::string_view text = reader.text();
    ByteReader fields(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    CompactionSummary summary;
    summary.version = version;
    summary.until = fields.varint();
    summary.time_ns = unzigzag(fields.varint());
    summary.events = fields.varint();
    summary.missing = fields.varint();
    summary.corrupt_blocks = fields.varint();
    summary.corrupt_bytes = fields.varint();
    summary.max_bytes = fields.varint();
    summary.is_exceeded = fields.varint() != 0;
    if (!fields.done()) {
      summary.keep_ns = fields.varint();
      summary.keeps_less = fields.varint() != 0;
    }
    if (summary.until != first_sequence) throw DecodeError("a compacted part up to another event than its block says");
    if (summary.events > summary.until || summary.missing > summary.until - summary.events) {
      throw DecodeError("a compacted part of more events than there were");
    }
    return summary;
  }
};

}  // namespace alloctrace
