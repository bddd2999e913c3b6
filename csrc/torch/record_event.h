// Composes an event from what is known in an allocator's hook (time, thread, Python stack, autograd node) and stores
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../core/format/definitions.h"
#include "../core/format/event.h"
#include "../python/recording/session.h"
#include "autograd_context.h"

namespace alloctrace::torch_side {

// What is known about this thread: its id, its Python stack, where its autograd stands.
struct EventContext {
  std::uint32_t thread = 0, stack = 0;
  AutogradPoint autograd;
};
// Throws only for want of memory.
EventContext context_of(python::Session& session, python::ThreadContext& thread);
void set_context(Event& event, const EventContext& context) noexcept;

// Adds that to an event, and the location's id. The caller fills in what happened and when.
void add_context(python::Session& session, python::ThreadContext& thread, Event& event, const Location& where);

// May be called under any lock of an allocator, on any thread, with or without the GIL. Never throws, never takes the
// GIL, calls no torch operator. Does nothing when no session is on.
void record(EventKind kind, const void* address, std::size_t size, const Location& where) noexcept;

// A position that the program sets in the trace: no device, fields as PositionFields says. is_said: the program itself
// ended the step; else an optimizer did.
void record_step(std::uint64_t number, bool is_said) noexcept;
void record_position(EventKind kind, const std::string& name) noexcept;

// What the program says a block is for.
struct RoleNote {
  std::uint64_t address = 0;  // of its block
  std::int32_t device_type = 0, device_index = 0;
  Role role = Role::kUnknown;
  std::string name;  // empty: none
};
// All at once: they share the time, the stack and the thread.
void record_roles(const std::vector<RoleNote>& notes) noexcept;

// Counts an allocation of zero bytes: it has no address and is not an event.
void count_empty_allocation() noexcept;

// Counts an event that could not be recorded for lack of memory.
void count_fault() noexcept;

}  // namespace alloctrace::torch_side
