// The spool: a preallocated file, mapped shared, through which events and definitions travel from the hooks to the
// writer.
//
// A store into it is in the kernel's hands at once: what was committed survives SIGKILL, a crash or os._exit, and the
// reader finds it there (spool_reader.h). The file is preallocated because a store into a hole on a full disk
// would be a SIGBUS, after which nothing more can be recorded (truncation_guard.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "../base/closed_in_child.h"
#include "../base/unnamed_file.h"
#include "../format/format.h"
#include "../format/spool_layout.h"
#include "definition_log.h"
#include "truncation_guard.h"

namespace alloctrace {

class SpoolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct SpoolOptions {
  std::string path;
  std::uint64_t ring_events = std::uint64_t{1} << 18;
  std::uint64_t definitions_bytes = std::uint64_t{8} << 20;
  // How long one event may wait for room before it is counted as lost; 0: not at all (on_full="drop").
  std::uint64_t wait_ns = 100'000'000;
};

// The recording side of the spool. push() may be called from any number of threads at once.
class Spool {
 public:
  // Creates, preallocates and maps the file. Throws SpoolError, leaving no file behind, when there is no room.
  // `wake` is called (from hooks) when the writer should drain now; it must be async-signal-safe.
  Spool(const SpoolOptions& options, const std::uint8_t (&session_id)[16], std::function<void()> wake);
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // Stores one event at the next position. Everything that happened before the call, in any thread, has a lower
  // position than everything that happens after it. False: the ring was full for too long; the event is counted as
  // lost. `sequence`, where given, receives the event's number.
  bool push(const Event& event, std::uint64_t* sequence = nullptr) noexcept;

  // The free whose request is at `position` has completed, and nothing else has happened on its device since: the event
  // there becomes a free_completed, which stands for both. False: too late, the writer has taken the request, and the
  // completion is an event of its own.
  bool complete_free(std::uint64_t position) noexcept;

  [[gnu::cold, gnu::noinline]] void count_lost(LossCause cause) noexcept;
  // Writes `lost` events where events are missing, for all that were lost since the last one that got through.
  [[gnu::cold, gnu::noinline]] void report_losses() noexcept;
  SpoolHeader& header() { return *header_; }
  DefinitionLog& definitions() { return *definitions_; }
  const std::string& path() const { return options_.path; }
  std::uint64_t capacity() const { return options_.ring_events; }

  // The writer's side. Takes the whole events that follow tail without a gap, at most `limit`: they do not change any
  // more. Returns the position after the last of them.
  std::uint64_t take(std::uint64_t limit) noexcept;
  // The ring's memory from position `from`, up to where the ring wraps.
  std::span<const Event> events(std::uint64_t from, std::uint64_t to) const;
  void release(std::uint64_t tail) {
    tail_.store(tail, std::memory_order_relaxed);
    header_->tail.store(tail, std::memory_order_release);
  }
  // Everything before it is in the trace file. Holds also when the spool is gone.
  std::uint64_t tail() const { return tail_.load(std::memory_order_relaxed); }
  // Another process has truncated the file, or its file system has failed. The mapping has empty pages then, hooks may
  // go on storing into them, and nothing that is read from it is certain: a reader calls this after it has read.
  bool is_gone() const noexcept;
  // Keeps what a spool that is gone does not have any more; returns false if it is. Only the writer calls it.
  bool remember() noexcept;
  void set_anchor(const ClockAnchor& anchor);
  // While the trace file cannot be written, hooks drop at once instead of waiting for a writer that cannot help.
  void set_write_failed(bool failed) { write_failed_.store(failed, std::memory_order_relaxed); }
  // Returns the header's totals. In a spool that is gone, missing() events count as lost (kWriteFailed).
  Counters counters() const;
  // Returns the number of events that a spool which is gone lost since tail(), at least 1; 0 of a whole one. Those
  // between the last call of remember() and the truncation are not known.
  std::uint64_t missing() const;
  std::uint64_t events() const;  // so far

  // Gives the file its name, once nothing can fail any more: one of that name may hold the end of a good trace. Throws
  // SpoolError.
  void publish();
  void remove_file() { name_.remove(); }  // after everything in it is in the trace

 private:
  Counters counters_of_header() const;
  bool claim(std::uint64_t& position) noexcept;
  // False: there will be none for this event. deadline: until when it waits; 0 before it has waited.
  [[gnu::cold, gnu::noinline]] bool wait_for_room(std::uint64_t& deadline) noexcept;
  void commit(std::uint64_t position, const Event& event) noexcept;

  // First what each event needs, in one cache line.
  SpoolHeader* header_ = nullptr;
  Event* ring_ = nullptr;
  std::uint64_t mask_ = 0;
  std::atomic<bool> losses_unreported_{false};  // some lost_unreported is not 0: one load for each event, not three
  // After one event has waited in vain, the next ones are dropped at once until a quarter of the ring is free: a
  // stalled disk costs the program one wait, not one for each event.
  std::atomic<bool> dropping_{false};
  std::atomic<bool> write_failed_{false};
  std::atomic<std::uint64_t> tail_{0};
  SpoolOptions options_;
  UnnamedFile name_;
  std::function<void()> wake_;
  int lock_ = -1;  // holds a lock (flock) as long as this process may write to the file
  ClosedInChild lock_in_child_;
  std::uint8_t* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t* mark_ = nullptr;  // the last word of the file
  mutable std::mutex remembered_;  // of those below
  mutable std::uint64_t most_missing_ = 0;
  std::uint64_t last_head_ = 0;
  Counters last_counters_{};
  std::optional<TruncationGuard> guard_;
  std::unique_ptr<DefinitionLog> definitions_;
};

}  // namespace alloctrace
