// The active session, and entry to it from an allocator's hook, on any thread, with or without Python.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "../../core/recording/recorder.h"
#include "code_registry.h"
#include "frame_walk.h"
#include "module_registry.h"

namespace alloctrace::python {

struct Session {
  Session(const RecorderOptions& options, bool python_stacks);
  Recorder recorder;
  CodeRegistry codes;
  ModuleRegistry modules;
  const bool python_stacks;
  const std::uint64_t number;  // never reused, so that threads detect ids of an older session
};

// State of a thread between hooks. Created at the thread's first event, reused when the thread has ended.
struct ThreadContext {
  // True while this thread is inside a hook. Written by this thread, read by the thread that ends a session.
  std::atomic<bool> in_hook{false};
  std::uint64_t session = 0;  // number of the session that the ids below belong to
  std::uint32_t thread = 0;
  // Last free request that is recorded or lost: block address (0: none), event number, CUDA allocator calls before it.
  struct Request {
    std::uint64_t address = 0, number = 0, call = 0;
  } request{};
  // Locations of the last event and, by hash, of recent events: most events repeat one.
  struct LocationEntry {
    Location location{};
    std::uint32_t id = 0;
  };
  LocationEntry last_location{};
  std::array<LocationEntry, 16> locations{};
  // Event and innermost_position() of `request`; set only if storages are older than the recording.
  Event request_event{};
  std::uint64_t request_position = 0;
  struct NodeTypeEntry {
    const void* key = nullptr;
    std::uint64_t text_hash = 0;
    std::uint16_t id = 0;
  };
  std::array<NodeTypeEntry, 64> node_types{};
  StackCache stacks{};

  std::uint32_t location_id(Session& session, const Location& where);
  // Return whether the thread must be registered: the thread is new, or its ids are of an older session.
  bool is_new(const Session& current) const { return session != current.number; }
  [[gnu::cold, gnu::noinline]] void register_in(Session& new_session, std::uint64_t autograd_thread_id);
};

// Scope of a hook, in which the session cannot end; false without a session, inside another hook and in a forked child.
//
// Contract between hooks and the thread that ends the session:
// - Any thread may enter, with or without Python and the GIL, under an allocator's lock. Entering takes no lock, except
//   at a thread's first hook.
// - A hook sets in_hook, then loads active_session. The ending thread clears active_session, then waits until no thread
//   is in a hook (session.cpp has the barriers). So a session is freed only after its last scope, and a scope that is
//   entered later is false.
// - The end of a scope is a release store of in_hook: the ending thread sees all that the hook stored.
// - Apart from in_hook, a ThreadContext is used by its own thread only.
// - Events are discarded in a scope that is false: inside another hook they are counted as reentered, and without
//   memory for the thread's context they are not counted.
class HookScope {
 public:
  HookScope() noexcept;
  ~HookScope() {
    if (session_) thread_->in_hook.store(false, std::memory_order_release);
  }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

  explicit operator bool() const { return session_ != nullptr; }
  Session& session() { return *session_; }
  ThreadContext& thread() { return *thread_; }

 private:
  Session* session_ = nullptr;
  ThreadContext* thread_ = nullptr;
};

// Start the process's only session and return its number. Callers must hold a common lock. Throws what Recorder throws.
std::uint64_t start_session(const RecorderOptions& options, bool python_stacks);
// End the session after its last hook. Return whether the trace is complete (else the spool is kept), and whether the
// spool was gone.
std::pair<bool, bool> stop_session(const std::string& end_json, const std::function<bool()>& gives_up);
// End the session after its last hook and remove its files.
void discard_session();
bool session_is_active() noexcept;

// Keep forked children from writing into their parent's trace. Called once, at import.
void register_fork_handlers();

}  // namespace alloctrace::python
