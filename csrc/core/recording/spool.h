// The spool: a preallocated file, mapped shared, that carries events and definitions from the hooks to the writer.
//
// Its pages belong to the kernel: committed events survive SIGKILL, a crash or os._exit, and spool_reader.h recovers
// them. The file is preallocated because a store into a hole on a full disk raises SIGBUS, which ends the recording
// (truncation_guard.h).
//
// Contract of the ring:
// - An event is stored completely or not at all: push() fills a claimed slot and sets the slot's commit word last, by a
//   release store. The writer stops at the first slot without it; the reader of a killed run skips and counts them.
// - The writer sees events in the order of their positions, and each position once.
// - A full ring discards new events, never stored ones: an event waits for at most wait_ns; if that is in vain, it and
//   all that follow are counted as lost, without waiting, until a quarter of the ring is free.
// - Lost events are counted by cause; a `lost` event stands where they would be, at the next position that is free.
// - The definitions that an event refers to are in the definition log before the event is committed.
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

#include "../base/check.h"
#include "../base/closed_in_child.h"
#include "../base/unnamed_file.h"
#include "../format/format.h"
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
  // Maximum time that one event waits for room before it is counted as lost; 0: no wait (on_full="drop").
  std::uint64_t wait_ns = 100'000'000;
};

// The recording side of the spool. push() is thread-safe.
class Spool {
 public:
  // Create, preallocate and map the file. Throws SpoolError, leaving no file behind, when there is no room.
  // Hooks call `wake` when the writer should drain now; it must be async-signal-safe.
  Spool(const SpoolOptions& options, const std::uint8_t (&session_id)[16], std::function<void()> wake);
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // Store one event at the next position. Events pushed before this call, on any thread, have lower positions, and
  // events pushed after it higher ones. Returns false and counts the event as lost if the ring stays full.
  // `sequence`, if not null, receives the event's number.
  bool push(const Event& event, std::uint64_t* sequence = nullptr) noexcept;

  // Turn the free_requested at `position` into a free_completed, which replaces both events. Its device must have had
  // no other event since. Returns false if the writer has consumed the request: push the completion as its own event.
  bool complete_free(std::uint64_t position) noexcept;

  [[gnu::cold, gnu::noinline]] void count_lost(LossCause cause) noexcept;
  // Push a `lost` event per cause for the events lost since the last report.
  [[gnu::cold, gnu::noinline]] void report_losses() noexcept;
  SpoolHeader& header() { return *header_; }
  DefinitionLog& definitions() { return *definitions_; }
  const std::string& path() const { return options_.path; }
  std::uint64_t capacity() const { return options_.ring_events; }

  // Consume the committed events that follow tail without a gap, at most `limit`: complete_free() can no longer change
  // them. Returns the position after the last of these events. Only the writer calls it.
  std::uint64_t consume(std::uint64_t limit) noexcept;
  // Return the events from position `from` to `to`, or to the end of the ring's memory if that comes first.
  std::span<const Event> events(std::uint64_t from, std::uint64_t to) const;
  void release(std::uint64_t tail) {
    if constexpr (kChecks) check_release(tail);
    tail_.store(tail, std::memory_order_relaxed);
    header_->tail.store(tail, std::memory_order_release);
  }
  // Return the position up to which all events are in the trace file; valid also in a truncated spool.
  std::uint64_t tail() const { return tail_.load(std::memory_order_relaxed); }
  // Return whether another process has truncated the file, or its file system has failed. The mapping then has empty
  // pages, and hooks may still store into them. Values read from the mapping are valid only if a later call of this
  // function returns false.
  bool is_truncated() const noexcept;
  // Save head and counters for missing_events(); returns false if the spool is truncated. Only the writer calls it.
  bool save_totals() noexcept;
  void set_anchor(const ClockAnchor& anchor);
  // Set whether the trace file cannot be written. Hooks then drop events at once: the writer cannot make room.
  void set_write_failed(bool failed) { write_failed_.store(failed, std::memory_order_relaxed); }
  // Return the header's totals. Of a truncated spool, missing_events() events count as lost (kWriteFailed).
  Counters counters() const;
  // Return the number of events after tail() that a truncated spool lost, at least 1; 0 if it is not truncated. Events
  // between the last call of save_totals() and the truncation are not counted.
  std::uint64_t missing_events() const;
  std::uint64_t event_count() const;

  // Give the file its name, as the last step of a start: it replaces an old spool of this name, which may hold the last
  // events of a good trace. Throws SpoolError.
  void publish();
  void remove_file() { file_.remove(); }

 private:
  Counters counters_of_header() const;
  bool claim(std::uint64_t& position) noexcept;
  // Wait until the ring has room; returns false if the event must be dropped. deadline: the end of the event's wait,
  // set by its first call; 0 before.
  [[gnu::cold, gnu::noinline]] bool wait_for_room(std::uint64_t& deadline) noexcept;
  void commit(std::uint64_t position, const Event& event) noexcept;
  // Check builds: check the order of tail and head, and that the released slots still have the marks of their
  // positions.
  void check_release(std::uint64_t tail) const;

  // The members that each push() reads come first, in one cache line.
  SpoolHeader* header_ = nullptr;
  Event* ring_ = nullptr;
  std::uint64_t mask_ = 0;
  std::atomic<bool> losses_unreported_{false};  // a lost_unreported is not 0: one load per event instead of three
  // Set when the wait of one event times out: later events are dropped at once until a quarter of the ring is free. A
  // stalled disk thus costs the program one wait, not one per event.
  std::atomic<bool> dropping_{false};
  std::atomic<bool> write_failed_{false};
  std::atomic<std::uint64_t> tail_{0};
  SpoolOptions options_;
  UnnamedFile file_;
  std::function<void()> wake_;
  int lock_file_ = -1;  // descriptor whose flock is held as long as this process may write to the file
  ClosedInChild lock_in_child_;
  std::uint8_t* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t* end_mark_ = nullptr;  // the last word of the file: kSpoolMark until the file is truncated
  mutable std::mutex totals_mutex_;    // guards the next three
  mutable std::uint64_t max_missing_ = 0;
  std::uint64_t saved_head_ = 0;
  Counters saved_counters_{};
  std::optional<TruncationGuard> guard_;
  std::unique_ptr<DefinitionLog> definitions_;
};

}  // namespace alloctrace
