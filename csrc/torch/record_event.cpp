#include "record_event.h"

#include "../core/base/clock.h"
#include "../core/format/event_fields.h"
#include "autograd_context.h"

namespace alloctrace::torch_side {

namespace {

void add_thread_context(python::HookScope& scope, Event& event) {
  python::Session& session = scope.session();
  python::ThreadContext& thread = scope.thread();
  if (scope.thread_is_new()) scope.adopt_thread(autograd_thread_id());
  event.thread = thread.thread;
  if (session.python_stacks) event.stack = python::current_stack(thread.stacks, session.codes, session.modules);
  if ((event.stack & python::kStackIsCut) != 0) [[unlikely]] {
    event.stack = event.stack == python::kStackNotStored ? 0 : event.stack & ~python::kStackIsCut;
    session.recorder.spool().header().unknown_stacks.fetch_add(1, std::memory_order_relaxed);
  }
  fill_autograd_context(event, session, thread);
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
      add_context(scope, event, *where);
    } else {
      add_thread_context(scope, event);
    }
    scope.session().recorder.push(event);
  } catch (...) {
    scope.session().recorder.spool().count_lost(LossCause::kFault);
  }
}

}  // namespace

void add_context(python::HookScope& scope, Event& event, const Location& where) {
  add_thread_context(scope, event);
  event.location = scope.thread().location_id(scope.session(), where);
}

// Flat: see on_trace_entry() in cuda/tracker.cpp.
[[gnu::flatten]] void record(EventKind kind, const void* address, std::size_t size, const Location& where) noexcept {
  python::HookScope scope;
  if (scope) record_in(scope, kind, reinterpret_cast<std::uint64_t>(address), size, &where);
}

void record_step(std::uint64_t number, bool is_said) noexcept {
  python::HookScope scope;
  if (scope) record_in(scope, EventKind::kStep, is_said ? 1 : 0, number, nullptr);
}

void record_position(EventKind kind, const std::string& name) noexcept {
  python::HookScope scope;
  if (!scope) return;
  std::uint32_t id = 0;
  try {
    id = scope.session().recorder.stacks().string(name);
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
    add_thread_context(scope, event);
    event.node_thread = event.node_type = 0;
    for (const RoleNote& note : notes) {
      event.address = note.address;
      event.location = scope.thread().location_id(session, {note.device_type, note.device_index});
      RoleFields(event).role = static_cast<std::uint64_t>(note.role);
      RoleFields(event).name = note.name.empty() ? 0 : session.recorder.stacks().string(note.name);
      session.recorder.push(event);
    }
  } catch (...) {
    session.recorder.spool().count_lost(LossCause::kFault);
  }
}

void count_empty_allocation() noexcept {
  python::HookScope scope;
  if (scope) scope.session().recorder.spool().header().empty_allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace alloctrace::torch_side
