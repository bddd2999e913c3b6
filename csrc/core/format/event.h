// One allocation event as it lies in memory: 64 bytes, one cache line, no pointers.
//
// The same layout is used by the hook that fills it, the ring that carries it across a crash, and the encoder that
// turns it into bytes on disk. docs/trace-format.md describes it for people who write their own reader.
#pragma once

#include <cstddef>
#include <cstdint>

namespace alloctrace {

// What happened. Names are torch's own (`c10::CachingDeviceAllocator::TraceEntry::Action`) where torch has one.
// The numbers are part of the file format: append, never renumber. 0 (none) is a call that a
// kill interrupted, written by finish_trace alone.
enum class EventKind : std::uint8_t {
  kAlloc = 1,
  kFreeRequested = 2,
  kFreeCompleted = 3,
  kSegmentAlloc = 4,
  kSegmentFree = 5,
  kSegmentMap = 6,
  kSegmentUnmap = 7,
  kSnapshot = 8,  // torch was asked for a snapshot; the trace has the state itself only where kAllocatorState follows
  kOom = 9,
  kStep = 10,  // a step ends here
  kMark = 11,
  kRegionBegin = 12,
  kRegionEnd = 13,
  kLost = 14,     // events are missing here
  kRaw = 15,      // an action this build does not know
  kRole = 16,     // what the block at this address is for: a parameter, its gradient, ...
  kMemory = 17,   // what the driver reports of a device, or the system of this process
  kConfig = 18,   // the allocator's settings, at the start and when they change
  kNoSplit = 19,  // blocks of this pool are never split from now on
  kStateSegment = 20,
  kStateBlock = 21,
  kLatency = 22,  // how long a call took
  kEmptyCache = 23,
  kStreamUse = 24,       // record_stream: the block is used on the stream of this location
  kAllocatorState = 25,  // kStateSegment and kStateBlock events follow
  // A pool goes back to an earlier state (setCheckpointPoolState): where that begins, and where it is done.
  // Whatever the settings, what this thread allocates on the device in between has exactly the sizes it had then.
  kPoolRestore = 26,
  kPoolUse = 27,         // allocations go to the pool of this location from now on, or no longer
  kPoolAllocator = 28,   // the pool of this location has an allocator of its own (MemPool(allocator)): never expandable
  kPoolRelease = 29,     // a graph or a MemPool has let go of the pool of this location, or a use of it has ended
  kMemoryFraction = 30,  // of the device, this process may reserve so much
  kPoolOnOom = 31,       // out of memory, torch takes blocks of the pool of this location from now on, or no longer
  kCapture = 32,         // a graph is captured on the device from now on, or no longer; from torch 2.13 on
};
constexpr std::size_t kEventKindCount = 33;

// Bits. Part of the file format.
enum SegmentFlags : std::uint8_t { kLargeSegment = 1, kExpandableSegment = 2 };
enum BlockState : std::uint8_t { kBlockInactive = 0, kBlockAllocated = 1, kBlockPendingFree = 2 };

// What a block is for. The numbers are part of the file format; a kRole event names only those that the program knows,
// the first four after kUnknown. The others follow from what happened: see replay/roles.h.
enum class Role : std::uint8_t {
  kUnknown = 0,
  kParameter = 1,
  kBuffer = 2,
  kGradient = 3,
  kOptimizerState = 4,
  kInput = 5,
  kActivation = 6,
  kTemporary = 7,
  kLibraryWorkspace = 8,
  kOther = 9,
};
constexpr std::size_t kRoleCount = 10;

// Why an event is missing from the trace. Numbers are part of the file format.
enum class LossCause : std::uint8_t {
  kRingFull = 0,     // the ring stayed full for longer than the hook may wait
  kWriteFailed = 1,  // the trace file could not be written (disk full, file system gone)
  kFault = 2,        // our own code failed in the hook
};
constexpr std::size_t kLossCauseCount = 3;

// The fields of an allocation. What other kinds of events keep in them has names in event_fields.h.
struct Event {
  std::uint32_t commit;  // spool only, not on disk: see spool_layout.h
  std::uint32_t stack;   // id of the innermost frame in the stack table, 0: none known
  std::uint64_t time;    // raw counter (clock.h); blocks tie it to the monotonic and the wall clock
  std::uint64_t address;
  std::uint64_t size;           // bytes that the program asked for; for a segment its size; in a free 0 where unknown
  std::uint32_t thread;         // id in the thread table
  std::uint32_t location;       // id in the location table: device, stream and pool together
  std::uint64_t sequence;       // at::sequence_number::peek() of this thread: number of the next autograd node
  std::uint64_t node_sequence;  // of the autograd node being evaluated (backward), else 0
  std::uint32_t node_thread;    // RecordFunction thread id that made that node in forward
  std::uint16_t node_type;      // id in the node type table, 0: no node is being evaluated
  EventKind kind;
  std::uint8_t reserved;
};
static_assert(sizeof(Event) == 64, "the event is one cache line, and its layout is the spool's format");

}  // namespace alloctrace
