#include "record_event.h"

#include <algorithm>

#include "../core/base/clock.h"
#include "../core/format/event_fields.h"

namespace alloctrace::torch_side {
namespace {

// Count a truncated stack. Return the id of its outer frames, or 0 if nothing of it is stored.
[[gnu::cold, gnu::noinline]] std::uint32_t count_truncated_stack(python::Session& session, std::uint32_t stack) {
  session.recorder.spool().header().unknown_stacks.fetch_add(1, std::memory_order_relaxed);
  return stack == python::kStackNotStored ? 0 : stack & ~python::kStackIsTruncated;
}

void record_in(python::HookScope& scope, EventKind kind, std::uint64_t address, std::uint64_t size,
               const Location* where) noexcept {
  try {
    Event event{};
    event.time = read_counter();
    event.kind = kind;
    event.address = address;
    event.size = size;
    if (where) {
      add_context(scope.session(), scope.thread(), event, *where);
    } else {
      set_context(event, read_event_context(scope.session(), scope.thread()));
    }
    scope.session().recorder.push(event);
  } catch (...) {
    scope.session().recorder.spool().count_lost(LossCause::kFault);
  }
}

}  // namespace

EventContext read_event_context(python::Session& session, python::ThreadContext& thread) {
  if (thread.is_new(session)) [[unlikely]]
    thread.register_in(session, autograd_thread_id());
  std::uint32_t stack = 0;
  if (session.python_stacks) stack = python::current_stack(thread.stacks, session.codes, session.modules);
  if ((stack & python::kStackIsTruncated) != 0) [[unlikely]]
    stack = count_truncated_stack(session, stack);
  return {thread.thread, stack, read_autograd_context(session, thread)};
}

void set_context(Event& event, const EventContext& context) noexcept {
  event.thread = context.thread;
  event.stack = context.stack;
  event.sequence = context.autograd.sequence;
  event.node_sequence = context.autograd.node_sequence;
  event.node_thread = context.autograd.node_thread;
  event.node_type = context.autograd.node_type;
}

void add_context(python::Session& session, python::ThreadContext& thread, Event& event, const Location& where) {
  set_context(event, read_event_context(session, thread));
  event.location = thread.location_id(session, where);
}

// Flattened: see on_trace_entry() in cuda/tracker.cpp.
[[gnu::hot, gnu::flatten]] void record(EventKind kind, const void* address, std::size_t size,
                                       const Location& where) noexcept {
  python::HookScope scope;
  if (scope) record_in(scope, kind, reinterpret_cast<std::uint64_t>(address), size, &where);
}

void record_step(std::uint64_t number, bool by_program) noexcept {
  python::HookScope scope;
  if (scope) record_in(scope, EventKind::kStep, by_program ? 1 : 0, number, nullptr);
}

void record_position(EventKind kind, const std::string& name) noexcept {
  python::HookScope scope;
  if (!scope) return;
  std::uint32_t id = 0;
  try {
    id = scope.session().recorder.stacks().string_id(name);
  } catch (...) {
  }
  if (id == 0) {
    scope.session().recorder.spool().count_lost(LossCause::kFault);
  } else {
    record_in(scope, kind, 0, id, nullptr);
  }
}

void record_roles(const std::vector<RoleNote>& notes) noexcept {
  python::HookScope scope;
  if (!scope || notes.empty()) return;
  python::Session& session = scope.session();
  try {
    Event event{};
    event.time = read_counter();
    event.kind = EventKind::kRole;
    set_context(event, read_event_context(session, scope.thread()));
    event.node_type = 0;
    for (const RoleNote& note : notes) {
      event.address = note.address;
      event.location = scope.thread().location_id(session, {note.device_type, note.device_index});
      RoleFields(event).role = static_cast<std::uint64_t>(note.role);
      RoleFields(event).module = note.module;
      RoleFields(event).name = note.name.empty() ? 0 : session.recorder.stacks().string_id(note.name);
      session.recorder.push(event);
    }
  } catch (...) {
    session.recorder.spool().count_lost(LossCause::kFault);
  }
}

void record_garbage_collection(python::HookScope& scope, const python::GarbageCollection& collection) noexcept {
  python::Session& session = scope.session();
  try {
    if (scope.thread().is_new(session)) scope.thread().register_in(session, autograd_thread_id());
    Event event{};
    event.time = read_counter();
    event.kind = EventKind::kGarbageCollection;
    event.thread = scope.thread().thread;
    // As in the thread's other events: a difference would take bytes in this event and in the next.
    event.sequence = read_autograd_context(session, scope.thread()).sequence;
    const GarbageCollectionFields fields(event);
    fields.first_event = collection.first_event;
    fields.collected = collection.collected;
    fields.generation = collection.generation;
    fields.uncollectable = static_cast<std::uint32_t>(std::min<std::uint64_t>(collection.uncollectable, UINT32_MAX));
    session.recorder.push(event);
  } catch (...) {
    session.recorder.spool().count_lost(LossCause::kFault);
  }
}

void count_empty_allocation() noexcept {
  python::HookScope scope;
  if (scope) scope.session().recorder.spool().header().empty_allocations.fetch_add(1, std::memory_order_relaxed);
}

void count_fault() noexcept {
  python::HookScope scope;
  if (scope) scope.session().recorder.spool().count_lost(LossCause::kFault);
}

}  // namespace alloctrace::torch_side
