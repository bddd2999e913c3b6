// Allocation event in memory: 64 bytes, one cache line, no pointers. The hook fills this layout, the ring preserves it
// across a crash, and the encoder turns it into bytes on disk (docs/trace-format.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace alloctrace {

// Action of allocator, driver or program, with torch's name (`c10::CachingDeviceAllocator::TraceEntry::Action`) if any.
// Numbers of the file format: append, never renumber. finish_trace writes 0 (none) for a call interrupted by a kill.
// A new kind needs a view in event_fields.h, its name in KINDS (reading/names.py) and a row in docs/trace-format.md.
// The codec encodes any kind; the replay ignores unknown kinds.
enum class EventKind : std::uint8_t {
  kAlloc = 1,
  kFreeRequested = 2,
  kFreeCompleted = 3,
  kSegmentAlloc = 4,
  kSegmentFree = 5,
  kSegmentMap = 6,
  kSegmentUnmap = 7,
  kSnapshot = 8,  // a torch snapshot was requested; the state is recorded only if kAllocatorState follows
  kOom = 9,
  kStep = 10,  // end of a step
  kMark = 11,
  kRegionBegin = 12,
  kRegionEnd = 13,
  kLost = 14,     // events are missing here
  kRaw = 15,      // an action unknown to this build
  kRole = 16,     // purpose of the block at this address: parameter, gradient, ...
  kMemory = 17,   // memory of a device as the driver reports it, of this process, or of torch's pinned pool
  kConfig = 18,   // allocator settings, at the start and after each change
  kNoSplit = 19,  // blocks of this pool are never split from now on
  kStateSegment = 20,
  kStateBlock = 21,
  kLatency = 22,  // duration of a call
  kEmptyCache = 23,
  kStreamUse = 24,       // record_stream: the block is used on the stream of this location
  kAllocatorState = 25,  // kStateSegment and kStateBlock events follow
  // Begin and end of restoring a pool to an earlier state (setCheckpointPoolState). In between, this thread's
  // allocations on the device get exactly their earlier sizes, whatever the settings.
  kPoolRestore = 26,
  kPoolUse = 27,         // begin or end of allocating from the pool of this location
  kPoolAllocator = 28,   // the pool of this location has its own allocator (MemPool(allocator)): never expandable
  kPoolRelease = 29,     // a graph or MemPool released the pool of this location, or a use of the pool ended
  kMemoryFraction = 30,  // maximum share of the device that this process may reserve
  kPoolOnOom = 31,       // begin or end of using blocks of the pool of this location when out of memory
  kCapture = 32,         // begin or end of a graph capture on the device; from torch 2.13 on
  // End of a collection of Python's garbage collector on this thread.
  kGarbageCollection = 33,
};

// Bits. Part of the file format.
enum SegmentFlags : std::uint8_t { kLargeSegment = 1, kExpandableSegment = 2 };
enum BlockState : std::uint8_t { kBlockInactive = 0, kBlockAllocated = 1, kBlockPendingFree = 2 };

// Purpose of a block (file format). kRole events have only the four after kUnknown; replay/roles.h infers the others.
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
constexpr std::size_t kRoleCount = 10;  // also a width in the compacted part: roles_codec.cpp

// Reason why an event is missing. The numbers are part of the file format.
enum class LossCause : std::uint8_t {
  kRingFull = 0,     // the ring stayed full longer than the hook may wait
  kWriteFailed = 1,  // the trace file could not be written (disk full, file system gone)
  kFault = 2,        // our own code failed in the hook
};
constexpr std::size_t kLossCauseCount = 3;

// Fields of an allocation; event_fields.h names their meanings in other kinds of events.
struct Event {
  std::uint32_t commit;  // spool only, not on disk: see SpoolHeader in format.h
  std::uint32_t stack;   // id of the innermost frame in the stack table, 0: unknown
  std::uint64_t time;    // raw counter (clock.h); block anchors convert it to monotonic and wall time
  std::uint64_t address;
  std::uint64_t size;           // requested bytes; of a segment its size; of a free 0 if unknown
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
