#include "session.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>

#include <mutex>
#include <new>
#include <vector>

#include "../../core/base/closed_in_child.h"
#include "../../core/base/hash.h"
#include "../../core/base/thread.h"
#include "../../core/recording/termination_signal.h"
#include "../../core/recording/truncation_guard.h"
#include "../../core/recording/wait.h"
#include "memory_watch.h"
#include "module_names.h"
#include "pending_calls.h"
#include "thread_names.h"

namespace alloctrace::python {
namespace {

std::atomic<Session*> active_session{nullptr};
std::atomic<std::uint64_t> last_session_number{0};

// Contexts of all threads. A new thread reuses the context of one that has ended.
struct ThreadRegistry {
  std::mutex mutex;
  std::vector<std::unique_ptr<ThreadContext>> all;
  std::vector<ThreadContext*> unused;
  pthread_key_t on_thread_exit{};
};

constinit ALLOCTRACE_FAST_THREAD_LOCAL ThreadContext* this_thread = nullptr;

void release_context(void* context);

// Never destroyed: hooks run until the process has exited, even after static destructors.
ThreadRegistry* const leaked_registry = [] {
  auto new_registry = std::make_unique<ThreadRegistry>();
  pthread_key_create(&new_registry->on_thread_exit, release_context);
  return new_registry.release();
}();
ThreadRegistry& registry() { return *leaked_registry; }

void release_context(void* context) {
  this_thread = nullptr;
  const std::lock_guard<std::mutex> guard(registry().mutex);
  registry().unused.push_back(static_cast<ThreadContext*>(context));
}

// Return a context for this thread; nullptr if there is no memory for it: the event is then lost.
[[gnu::cold, gnu::noinline]] ThreadContext* acquire_context() noexcept {
  try {
    ThreadRegistry& threads = registry();
    ThreadContext* context;
    {
      const std::lock_guard<std::mutex> guard(threads.mutex);
      if (threads.unused.empty()) {
        threads.all.push_back(std::make_unique<ThreadContext>());
        threads.unused.reserve(threads.all.size());
        context = threads.all.back().get();
      } else {
        context = threads.unused.back();
        threads.unused.pop_back();
      }
    }
    context->session = 0;
    context->stacks.last.clear();  // the memory of the ended thread's frames is freed
    // A pthread key, not a thread_local destructor: other thread_local destructors may free tensors after ours has run.
    pthread_setspecific(threads.on_thread_exit, context);
    return this_thread = context;
  } catch (...) {
    return nullptr;
  }
}

// A hook stores in_hook, then loads active_session. The thread that ends the session clears active_session, then loads
// in_hook. Each store must be visible before the following load, or a hook would use a freed session. The ending thread
// issues membarrier for all threads; without membarrier, each hook needs a fence.
bool register_barrier() { return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0; }
const bool kernel_barrier = register_barrier();

void hook_barrier() {
  if (kernel_barrier)
    std::atomic_signal_fence(std::memory_order_seq_cst);
  else
    std::atomic_thread_fence(std::memory_order_seq_cst);
}
void ending_barrier() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (kernel_barrier) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

void wait_for_hooks() {
  ThreadRegistry& threads = registry();
  std::vector<ThreadContext*> all;
  {
    const std::lock_guard<std::mutex> guard(threads.mutex);
    for (const auto& context : threads.all) all.push_back(context.get());
  }
  const auto no_hook_runs = [&] {
    for (const ThreadContext* context : all) {
      if (context->in_hook.load(std::memory_order_acquire)) return false;
    }
    return true;
  };
  // Hooks are short, but a flush() on another thread waits for the writer.
  while (!wait_until(no_hook_runs, clock_nanoseconds(CLOCK_MONOTONIC) + 1'000'000'000)) {
  }
}

void forget_threads_in_child() noexcept {
  const pthread_key_t on_thread_exit = registry().on_thread_exit;
  new (&registry()) ThreadRegistry();
  registry().on_thread_exit = on_thread_exit;
  pthread_setspecific(on_thread_exit, nullptr);
  this_thread = nullptr;
}

// Deactivate the session and return it after its last hook has ended.
std::unique_ptr<Session> detach_session() {
  std::unique_ptr<Session> session(active_session.exchange(nullptr, std::memory_order_acq_rel));
  if (session) {
    ending_barrier();
    wait_for_hooks();
  }
  return session;
}

// Leak the parent's session in the child: another thread may have been changing or freeing any part of the session,
// under locks that are never released in the child. No session lock is held over a fork.
void after_fork_in_child() {
  active_session.store(nullptr, std::memory_order_release);
  ClosedInChild::close_all();
  TerminationSignal::forget_in_child();
  TruncationGuard::forget_in_child();
  forget_threads_in_child();
  forget_thread_names_in_child();
  forget_module_names();
  forget_pending_work();
  unlock_memory_watch();
  forget_memory_watch_in_child();
}

}  // namespace

Session::Session(const RecorderOptions& options, bool with_python_stacks)
    : recorder(options),
      codes(recorder.stacks()),
      modules(recorder.stacks(), request_module_names),
      python_stacks(with_python_stacks),
      number(last_session_number.fetch_add(1) + 1) {}

std::uint32_t ThreadContext::location_id(Session& session, const Location& where) {
  if (last_location.id != 0 && last_location.location == where) return last_location.id;
  std::uint64_t hash = where.stream ^ where.pool_first << 1 ^ where.pool_second << 2;
  hash = (hash ^ static_cast<std::uint64_t>(where.device_type) << 3 ^ static_cast<std::uint64_t>(where.device_index)) *
         kGoldenRatio;
  LocationEntry& entry = locations[hash >> 60];
  if (entry.id == 0 || !(entry.location == where)) entry = {where, session.recorder.location_id(where)};
  last_location = entry;
  return entry.id;
}

void ThreadContext::register_in(Session& new_session, std::uint64_t autograd_thread_id) {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  session = new_session.number;
  request = {};
  last_location = {};
  locations = {};
  node_types = {};
  thread =
      new_session.recorder.add_thread({static_cast<std::uint64_t>(syscall(SYS_gettid)), autograd_thread_id, name, {}});
  if (thread != 0) request_thread_name(new_session.number, thread);
}

HookScope::HookScope() noexcept {
  if (active_session.load(std::memory_order_relaxed) == nullptr) return;
  thread_ = this_thread ? this_thread : acquire_context();
  if (!thread_) return;
  if (thread_->in_hook.load(std::memory_order_relaxed)) {
    // Null while the session ends; otherwise valid, since the outer hook keeps the session alive.
    Session* const active = active_session.load(std::memory_order_acquire);
    if (active) active->recorder.spool().header().reentered.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  thread_->in_hook.store(true, std::memory_order_relaxed);
  hook_barrier();
  session_ = active_session.load(std::memory_order_acquire);
  if (!session_) thread_->in_hook.store(false, std::memory_order_release);
}

std::uint64_t start_session(const RecorderOptions& options, bool python_stacks) {
  auto session = std::make_unique<Session>(options, python_stacks);
  const std::uint64_t number = session->number;
  active_session.store(session.release(), std::memory_order_release);
  return number;
}

std::pair<bool, bool> stop_session(const std::string& end_json, const std::function<bool()>& gives_up) {
  std::unique_ptr<Session> session = detach_session();
  if (!session) return {true, false};
  const bool written = session->recorder.stop(end_json, gives_up);
  const bool is_gone = session->recorder.is_spool_truncated();
  // The writer still waits for the disk, perhaps until the program ends, and uses the recorder.
  if (session->recorder.is_writer_abandoned()) static_cast<void>(session.release());
  return {written, is_gone};
}

void discard_session() {
  const std::unique_ptr<Session> session = detach_session();
  if (session) session->recorder.discard();
}

bool session_is_active() noexcept { return active_session.load(std::memory_order_acquire) != nullptr; }
void register_fork_handlers() { pthread_atfork(lock_memory_watch, unlock_memory_watch, after_fork_in_child); }

}  // namespace alloctrace::python
