// The recording that is on, and the way into it from an allocator's hook, on any thread, with or without Python.
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

// One recording in progress.
struct Session {
  Session(const RecorderOptions& options, bool python_stacks);
  Recorder recorder;
  CodeRegistry codes;
  ModuleRegistry modules;
  const bool python_stacks;
  const std::uint64_t number;  // never reused: what threads remember of an older session is void
};

// What a thread keeps between hooks. Made at its first event, recycled when it ends.
struct ThreadContext {
  // True while this thread is inside a hook. Written by its own thread, read by whoever ends a session.
  std::atomic<bool> in_hook{false};
  std::uint64_t session = 0;  // number of the session that the ids below belong to
  std::uint32_t thread = 0;
  // The last free that was requested in this thread and is in the trace or counted as lost: of which block (0: none),
  // its number, and the number of calls that the CUDA allocator had had before.
  struct Request {
    std::uint64_t address = 0, number = 0, call = 0;
  } request{};
  // The location of the last event, and those of recent ones, by hash: most events repeat one of them.
  struct LocationEntry {
    Location location{};
    std::uint32_t id = 0;
  };
  LocationEntry last_location{};
  std::array<LocationEntry, 16> locations{};
  // Where storages are older than the recording: the event of that request, and where the Python code stood.
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
  // Its record must be made (its ids are of an older session, or it is new).
  bool is_new(const Session& of) const { return session != of.number; }
  [[gnu::cold, gnu::noinline]] void adopt(Session& by, std::uint64_t autograd_thread_id);
};

// Entry to the session from a hook: false when nothing is recorded, when this thread is in a hook already, or in a
// forked child. While one exists, the session cannot end.
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

// Starts the one session of this process; callers exclude each other with a lock. Returns the session's number; throws
// what Recorder throws.
std::uint64_t start_session(const RecorderOptions& options, bool python_stacks);
// Ends it after the last hook has left. Returns whether the trace is written to its end (else the spool is kept), and
// whether the spool was gone.
std::pair<bool, bool> stop_session(const std::string& end_json, const std::function<bool()>& gives_up);
// Ends it in the same way, and removes its files.
void discard_session();
bool session_is_active() noexcept;

// Called once, at import: keeps forked children from writing into their parent's trace.
void register_fork_handlers();

}  // namespace alloctrace::python
