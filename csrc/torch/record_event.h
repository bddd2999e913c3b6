// Composition of events from time, thread, Python stack and autograd node in a hook, and their storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../core/format/definitions.h"
#include "../core/format/event.h"
#include "../python/recording/garbage_collections.h"
#include "../python/recording/session.h"
#include "autograd_context.h"

namespace alloctrace::torch_side {

// Context of an event: ids of thread and Python stack, and autograd's state.
struct EventContext {
  std::uint32_t thread = 0, stack = 0;
  AutogradContext autograd;
};
// Read the context of the current thread. Throws only when out of memory.
EventContext read_event_context(python::Session& session, python::ThreadContext& thread);
void set_context(Event& event, const EventContext& context) noexcept;

// Set context and location id of an event. The caller sets time, kind and other fields.
void add_context(python::Session& session, python::ThreadContext& thread, Event& event, const Location& where);

// Record an event, on any thread, under any allocator's lock, with or without the GIL, if a session is on. Never
// throws, never takes the GIL, calls no torch operator.
void record(EventKind kind, const void* address, std::size_t size, const Location& where) noexcept;

// Record a position (PositionFields), without a device. by_program: the program ended the step, else an optimizer did.
void record_step(std::uint64_t number, bool by_program) noexcept;
void record_position(EventKind kind, const std::string& name) noexcept;

// Role of a block, reported by the program.
struct RoleNote {
  std::uint64_t address = 0;
  std::int32_t device_type = 0, device_index = 0;
  Role role = Role::kUnknown;
  std::string name;          // may be empty
  std::uint32_t module = 0;  // id; 0: unknown
};
// Record all notes with the same time, stack and thread.
void record_roles(const std::vector<RoleNote>& notes) noexcept;

// Record a garbage collection that ended on this thread. Without a stack: that of its frees is the same.
void record_garbage_collection(python::HookScope& scope, const python::GarbageCollection& collection) noexcept;

// Count an allocation of zero bytes, which has no address and is not an event.
void count_empty_allocation() noexcept;
// Count an event lost for lack of memory.
void count_fault() noexcept;

}  // namespace alloctrace::torch_side
