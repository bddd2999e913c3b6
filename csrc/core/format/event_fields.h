// Named views of the fields of events that are not allocations: MemoryFields(event).used is event.address. Both readers
// and writers use these views, so they cannot disagree. A view refers to its event. In Python, `size` is at most
// 2^63 - 1; `address` has all 64 bits.
#pragma once

#include <cstdint>
#include <type_traits>

#include "event.h"

namespace alloctrace {

template <typename E>
using EventNumber = std::conditional_t<std::is_const_v<E>, const std::uint64_t, std::uint64_t>;
template <typename E>
using EventNumber32 = std::conditional_t<std::is_const_v<E>, const std::uint32_t, std::uint32_t>;

// kStep: number of the step that ends here; is_explicit: the program ended it, else inferred from an optimizer.
// kMark, kRegionBegin, kRegionEnd: string id of the name.
template <typename E>
struct PositionFields {
  explicit PositionFields(E& event) : value(event.size), is_explicit(event.address) {}
  EventNumber<E>& value;
  EventNumber<E>& is_explicit;
};

// kOom; the size is the request's.
template <typename E>
struct OomFields {
  explicit OomFields(E& event) : free_bytes(event.address) {}
  EventNumber<E>& free_bytes;  // of the device
};

// kLost
template <typename E>
struct LostFields {
  explicit LostFields(E& event) : count(event.size), cause(event.address) {}
  EventNumber<E>& count;  // of the events that are missing here
  EventNumber<E>& cause;  // a LossCause
};

// kRaw: an action unknown to this build, with torch's address and size.
template <typename E>
struct RawFields {
  explicit RawFields(E& event) : action(event.sequence) {}
  EventNumber<E>& action;  // its number in torch
};

// kRole: address is that of a block live on the device of the location.
template <typename E>
struct RoleFields {
  explicit RoleFields(E& event) : name(event.size), role(event.node_sequence), module(event.node_thread) {}
  EventNumber<E>& name;      // string id, 0: none
  EventNumber<E>& role;      // a Role
  EventNumber32<E>& module;  // id of the module of the parameter or buffer, or of the state's parameter; 0: unknown
};

// kMemory, in bytes or kUnknownBytes.
// cpu: resident memory of the process, memory of the machine, anonymous resident memory (0: not recorded), 0.
// pinned: memory that torch's pool holds, in use or cached, then 0, 0, 0.
constexpr std::uint64_t kUnknownBytes = UINT64_MAX;
template <typename E>
struct MemoryFields {
  explicit MemoryFields(E& event)
      : used(event.address), total(event.size), by_this_process(event.sequence), by_others(event.node_sequence) {}
  EventNumber<E>& used;
  EventNumber<E>& total;
  EventNumber<E>& by_this_process;
  EventNumber<E>& by_others;
};

// kConfig
template <typename E>
struct ConfigFields {
  explicit ConfigFields(E& event) : settings(event.size) {}
  EventNumber<E>& settings;  // string id of the allocator's settings, as JSON
};

// kAllocatorState
template <typename E>
struct AllocatorStateFields {
  explicit AllocatorStateFields(E& event) : entries(event.size) {}
  EventNumber<E>& entries;  // number of kStateSegment and kStateBlock events directly after this one
};

// kStateSegment
template <typename E>
struct StateSegmentFields {
  explicit StateSegmentFields(E& event) : flags(event.node_sequence) {}
  EventNumber<E>& flags;  // SegmentFlags
};

// kStateBlock; the size is the rounded one.
template <typename E>
struct StateBlockFields {
  explicit StateBlockFields(E& event) : requested(event.sequence), state(event.node_sequence) {}
  EventNumber<E>& requested;  // bytes
  EventNumber<E>& state;      // a BlockState
};

// kLatency
template <typename E>
struct LatencyFields {
  explicit LatencyFields(E& event) : of_event(event.address), nanoseconds(event.size) {}
  EventNumber<E>& of_event;  // sequence number of the event that the call recorded
  EventNumber<E>& nanoseconds;
};

// kGarbageCollection: the thread's events from `first_event` up to this one were recorded during the collection.
template <typename E>
struct GarbageCollectionFields {
  explicit GarbageCollectionFields(E& event)
      : first_event(event.address),
        collected(event.size),
        generation(event.node_sequence),
        uncollectable(event.node_thread) {}
  EventNumber<E>& first_event;      // sequence number of the next event, of any thread, when the collection began
  EventNumber<E>& collected;        // objects freed
  EventNumber<E>& generation;       // 2: all objects
  EventNumber32<E>& uncollectable;  // objects left as garbage
};

// kPoolRelease
template <typename E>
struct PoolReleaseFields {
  explicit PoolReleaseFields(E& event) : uses_left(event.size) {}
  EventNumber<E>& uses_left;  // by graphs, MemPools and use_mem_pool; at 0 its segments may go back to the driver
};

// kMemoryFraction
template <typename E>
struct MemoryFractionFields {
  explicit MemoryFractionFields(E& event) : fraction(event.address), limit(event.size) {}
  EventNumber<E>& fraction;  // the bits of a double; 1: all of it
  EventNumber<E>& limit;     // maximum reserved bytes of the process; kUnknownBytes: no limit
};

// kPoolRestore, kPoolUse, kPoolOnOom, kCapture
template <typename E>
struct PoolSwitchFields {
  explicit PoolSwitchFields(E& event) : begins(event.address) {}
  EventNumber<E>& begins;  // 1 where it begins, 0 where it ends
};

}  // namespace alloctrace
