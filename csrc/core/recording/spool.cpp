// Linux only: posix_fallocate, and MAP_SHARED on a preallocated file.
#include "spool.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <new>

#include "../format/event_fields.h"
#include "wait.h"

namespace alloctrace {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what, int error) {
  throw SpoolError(what + " " + path + ": " + std::strerror(error));
}

// Write to each page now: otherwise a hook's first store to a page would cost a page fault of microseconds.
// MAP_POPULATE only reads the pages of a shared mapping. Returns 0, or an errno: a preallocated page may have no room.
int touch_pages(void* memory, std::size_t bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, not defined by older C libraries
  if (madvise(memory, bytes, kPopulateWrite) == 0) return 0;
  if (errno == EFAULT || errno == EHWPOISON) return ENOSPC;
  if (errno == ENOMEM) return ENOMEM;
  // The kernel is older than 5.14, or a sandbox rejects the call.
  constexpr std::size_t kPage = 4096;
  for (std::size_t at = 0; at < bytes; at += kPage) static_cast<volatile std::uint8_t*>(memory)[at] = 0;
  return 0;
}

// Return whether this is the commit word of a complete event at the position.
constexpr bool is_mark_of(std::uint32_t word, std::uint64_t position) {
  const std::uint32_t mark = commit_mark(position);
  return word == mark || word == (mark ^ kCompletedBit) || word == (mark ^ kConsumedBit);
}

}  // namespace

Spool::Spool(const SpoolOptions& options, const std::uint8_t (&session_id)[16], std::function<void()> wake)
    : mask_(options.ring_events - 1), options_(options), file_(options.path), wake_(std::move(wake)) {
  if (options.ring_events > kMaxRingEvents) throw SpoolError("the spool's ring has too many events");
  const std::size_t ring_bytes = options.ring_events * sizeof(Event);
  bytes_ =
      (kSpoolHeaderBytes + ring_bytes + options.definitions_bytes + 2 * sizeof *end_mark_ - 1) & -sizeof *end_mark_;
  // Create a new file, which publish() puts in place of an old spool. Emptying the old spool would destroy the last
  // events of a good trace, or the mapping of another process.
  const int file = file_.create(O_RDWR);
  if (file < 0) fail(options.path, "cannot create the spool", errno);
  const ClosedInChild file_in_child(file);
  // Hold a lock until this process ends: `finish`, also of a copy of the trace, must not remove the spool while events
  // go into it. The lock has a read-only descriptor: closing a writable one would send all written pages to the server
  // of a network file system.
  lock_file_ = file_.open_for_reading(file);
  lock_in_child_ = ClosedInChild(lock_file_);
  if (lock_file_ < 0) {
    const int error = errno;
    file_.remove();
    close(file);
    fail(options.path, "cannot open the spool", error);
  }
  flock(lock_file_, LOCK_SH | LOCK_NB);
  int error = posix_fallocate(file, 0, static_cast<off_t>(bytes_));
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  close(file);  // before the pages are written, see above
  if (error == 0) {
    guard_.emplace(memory, bytes_);
    end_mark_ = reinterpret_cast<std::uint64_t*>(static_cast<std::uint8_t*>(memory) + bytes_) - 1;
    *end_mark_ = kSpoolMark;
    error = touch_pages(memory, bytes_ - sizeof *end_mark_);
    if (error == 0 && is_truncated()) error = ENOSPC;
  }
  if (error != 0) {
    guard_.reset();
    if (memory != MAP_FAILED) munmap(memory, bytes_);
    file_.remove();
    close(lock_file_);
    fail(options.path, "no room for the spool of " + std::to_string(bytes_ >> 20) + " MiB at", error);
  }
  // Unmapped in forked children, which do not use the spool: a mapping would keep the disk space of a removed file.
  madvise(memory, bytes_, MADV_DONTFORK);
  memory_ = static_cast<std::uint8_t*>(memory);
  header_ = new (memory_) SpoolHeader{};
  ring_ = reinterpret_cast<Event*>(memory_ + kSpoolHeaderBytes);
  header_->format_version = kFormatVersion;
  header_->event_bytes = sizeof(Event);
  std::memcpy(header_->session_id, session_id, sizeof session_id);
  header_->ring_offset = kSpoolHeaderBytes;
  header_->ring_capacity = options.ring_events;
  header_->definitions_offset = kSpoolHeaderBytes + ring_bytes;
  header_->definitions_capacity = options.definitions_bytes;
  header_->process_id = static_cast<std::uint64_t>(getpid());
  header_->recorder = ProcessIdentity::current();
  header_->head_mark = header_->counters_mark = kSpoolMark;
  set_anchor(ClockAnchor::now());
  definitions_ = std::make_unique<DefinitionLog>(memory_ + header_->definitions_offset, options.definitions_bytes,
                                                 header_->definitions, options.wait_ns, wake_);
  // The magic is written last: a reader that sees the magic sees a complete header.
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header_->magic, kSpoolMagic, sizeof kSpoolMagic);
}

Spool::~Spool() {
  guard_.reset();
  munmap(memory_, bytes_);
  close(lock_file_);
}

void Spool::publish() {
  if (const int error = file_.publish(lock_file_, true)) fail(options_.path, "cannot create the spool", error);
  relock(lock_file_, LOCK_SH);
}

bool Spool::is_truncated() const noexcept {
  // Any truncation removes the file's last word. The fence keeps loads before this call ahead of this load.
  std::atomic_thread_fence(std::memory_order_acquire);
  return std::atomic_ref<std::uint64_t>(*end_mark_).load(std::memory_order_relaxed) != kSpoolMark;
}

bool Spool::save_totals() noexcept {
  const std::uint64_t head = header_->head.load(std::memory_order_acquire);
  const Counters counters = counters_of_header();
  if (is_truncated()) return false;
  const std::lock_guard<std::mutex> guard(totals_mutex_);
  saved_head_ = head;
  saved_counters_ = counters;
  return true;
}

std::uint64_t Spool::missing_events() const {
  if (!is_truncated()) return 0;
  const std::uint64_t head = header_->head.load(std::memory_order_acquire);
  const Counters now = counters_of_header();
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::lock_guard<std::mutex> guard(totals_mutex_);
  // Hooks still increment the header's numbers, from 0 if the truncation has zeroed them. Only the mark beside a number
  // tells whether 1,000 includes the saved value or counts 1,000 new events.
  const auto since = [](std::uint64_t mark, std::uint64_t current, std::uint64_t before) {
    return mark == kSpoolMark && current >= before ? current - before : current;
  };
  std::uint64_t missing = std::max(saved_head_, tail()) - tail() + since(header_->head_mark, head, saved_head_);
  for (std::size_t cause = 0; cause < kLossCauseCount; ++cause) {
    missing += since(header_->counters_mark, now.lost[cause], saved_counters_.lost[cause]);
  }
  max_missing_ = std::max({max_missing_, missing, std::uint64_t{1}});
  return max_missing_;
}

Counters Spool::counters() const {
  Counters counters = counters_of_header();
  const std::uint64_t lost = missing_events();
  if (lost == 0) return counters;
  const std::lock_guard<std::mutex> guard(totals_mutex_);
  counters = saved_counters_;
  counters.lost[static_cast<std::size_t>(LossCause::kWriteFailed)] += lost;
  return counters;
}

std::uint64_t Spool::event_count() const {
  const std::uint64_t head = header_->head.load(std::memory_order_acquire);
  return is_truncated() ? tail() : head;
}

// Request a cache line for writing. On x86-64 the builtin requests it for reading only: the later store would wait
// until the copy on the writer thread's core is invalidated.
inline void prefetch_for_store(const void* address) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

bool Spool::claim(std::uint64_t& position) noexcept {
  SpoolHeader& header = *header_;
  const std::uint64_t capacity = mask_ + 1;
  std::uint64_t deadline = 0;  // of all waits of this event: other threads may claim the room first
  prefetch_for_store(&header.head);
  position = header.head.load(std::memory_order_relaxed);
  for (;;) {
    const std::uint64_t used = position - header.tail.load(std::memory_order_acquire);
    if (used < capacity) [[likely]] {
      if (dropping_.load(std::memory_order_relaxed)) [[unlikely]] {
        if (used > capacity - capacity / 4) return false;
        dropping_.store(false, std::memory_order_relaxed);
      }
      if (header.head.compare_exchange_weak(position, position + 1, std::memory_order_acq_rel)) return true;
      continue;
    }
    // `used` is negative if tail has passed the loaded head: load head again. In a truncated spool it may stay
    // negative.
    if (static_cast<std::int64_t>(used) >= 0 ? !wait_for_room(deadline) : is_truncated()) return false;
    position = header.head.load(std::memory_order_relaxed);
  }
}

bool Spool::wait_for_room(std::uint64_t& deadline) noexcept {
  if (dropping_.load(std::memory_order_relaxed) || write_failed_.load(std::memory_order_relaxed) || is_truncated())
    return false;
  if (deadline == 0) deadline = clock_nanoseconds(CLOCK_MONOTONIC) + options_.wait_ns;
  const auto has_room = [&] {
    wake_();  // in each iteration: the event that the writer waits for may have been committed since
    return header_->head.load(std::memory_order_relaxed) - header_->tail.load(std::memory_order_acquire) <
           options_.ring_events;
  };
  if (options_.wait_ns != 0 && wait_until(has_room, deadline)) return true;
  dropping_.store(true, std::memory_order_relaxed);
  return false;
}

void Spool::commit(std::uint64_t position, const Event& event) noexcept {
  Event& slot = ring_[position & mask_];
  // Prefetch the slot of a later event: the ring is larger than a core's caches, and that hook would wait for memory.
  prefetch_for_store(&ring_[(position + 4) & mask_]);
  // The commit mark is stored last, with release: a thread that loads the mark sees the complete event. Field by field,
  // so that the compiler stores a hook's values from registers.
  slot.stack = event.stack;
  slot.time = event.time;
  slot.address = event.address;
  slot.size = event.size;
  slot.thread = event.thread;
  slot.location = event.location;
  slot.sequence = event.sequence;
  slot.node_sequence = event.node_sequence;
  slot.node_thread = event.node_thread;
  slot.node_type = event.node_type;
  slot.kind = event.kind;
  slot.reserved = event.reserved;
  std::atomic_ref<std::uint32_t>(slot.commit).store(commit_mark(position), std::memory_order_release);
  // Wake the writer once per quarter of the ring: it may then sleep long without letting the ring fill.
  if ((position & (mask_ >> 2)) == 0) wake_();
}

bool Spool::push(const Event& event, std::uint64_t* sequence) noexcept {
  if (losses_unreported_.load(std::memory_order_relaxed)) report_losses();
  std::uint64_t position;
  if (!claim(position)) {
    count_lost(write_failed_.load(std::memory_order_relaxed) ? LossCause::kWriteFailed : LossCause::kRingFull);
    return false;
  }
  commit(position, event);
  if (sequence) *sequence = position;
  return true;
}

bool Spool::complete_free(std::uint64_t position) noexcept {
  std::uint32_t mark = commit_mark(position);
  return std::atomic_ref<std::uint32_t>(ring_[position & mask_].commit)
      .compare_exchange_strong(mark, mark ^ kCompletedBit, std::memory_order_relaxed);
}

void Spool::count_lost(LossCause cause) noexcept {
  const auto index = static_cast<std::size_t>(cause);
  header_->lost[index].fetch_add(1, std::memory_order_relaxed);
  header_->lost_unreported[index].fetch_add(1, std::memory_order_relaxed);
  losses_unreported_.store(true, std::memory_order_release);
}

void Spool::report_losses() noexcept {
  if (is_truncated()) return;  // the writer reports missing_events()
  // Clear the flag before the counts are read: a loss counted later sets the flag again.
  losses_unreported_.store(false, std::memory_order_seq_cst);
  for (std::size_t cause = 0; cause < kLossCauseCount; ++cause) {
    const std::uint64_t missing = header_->lost_unreported[cause].exchange(0, std::memory_order_relaxed);
    if (missing == 0) continue;
    std::uint64_t position;
    if (!claim(position)) {
      header_->lost_unreported[cause].fetch_add(missing, std::memory_order_relaxed);
      losses_unreported_.store(true, std::memory_order_release);
      return;
    }
    Event lost{};
    lost.kind = EventKind::kLost;
    lost.time = read_counter();
    LostFields(lost).cause = cause;
    LostFields(lost).count = missing;
    commit(position, lost);
  }
}

std::uint64_t Spool::consume(std::uint64_t limit) noexcept {
  std::uint64_t position = tail();
  const std::uint64_t claimed = header_->head.load(std::memory_order_acquire);
  ALLOCTRACE_CHECK((header_->tail.load() == position && claimed - position <= options_.ring_events) || is_truncated(),
                   "the ring of %" PRIu64 " events has tail %" PRIu64 " (in the file %" PRIu64 ") and head %" PRIu64,
                   options_.ring_events, position, header_->tail.load(), claimed);
  const std::uint64_t head = std::min(claimed, position + limit);
  while (position < head) {
    Event& slot = ring_[position & mask_];
    const std::uint32_t mark = commit_mark(position);
    const std::atomic_ref<std::uint32_t> commit(slot.commit);
    std::uint32_t observed = commit.load(std::memory_order_acquire);
    // A slot without a complete event has the mark of the round before, or none in the first round.
    ALLOCTRACE_CHECK(
        is_mark_of(observed, position) ||
            (position < options_.ring_events ? observed == 0 : is_mark_of(observed, position - options_.ring_events)) ||
            is_truncated(),
        "the slot of event %" PRIu64 " has the commit mark 0x%" PRIx32 ", expected 0x%" PRIx32, position, observed,
        mark);
    if (observed == mark && slot.kind == EventKind::kFreeRequested &&
        commit.compare_exchange_strong(observed, mark ^ kConsumedBit, std::memory_order_relaxed)) {
      observed = mark ^ kConsumedBit;
    }
    if (observed == (mark ^ kCompletedBit)) {
      slot.kind = EventKind::kFreeCompleted;
    } else if (observed != mark && observed != (mark ^ kConsumedBit)) {
      break;
    }
    ++position;
  }
  return position;
}

#ifdef ALLOCTRACE_CHECKS
void Spool::check_release(std::uint64_t tail) const {
  const std::uint64_t begin = this->tail(), head = header_->head.load(std::memory_order_acquire);
  ALLOCTRACE_CHECK((tail - begin <= options_.ring_events && head - tail <= options_.ring_events) || is_truncated(),
                   "events up to %" PRIu64 " are released, with tail %" PRIu64 " and head %" PRIu64, tail, begin, head);
  for (std::uint64_t position = begin; position < tail && !is_truncated(); ++position) {
    const std::uint32_t word = std::atomic_ref<std::uint32_t>(ring_[position & mask_].commit).load();
    ALLOCTRACE_CHECK(is_mark_of(word, position) || is_truncated(),
                     "the slot of event %" PRIu64 " was changed before its release: commit mark 0x%" PRIx32
                     ", expected 0x%" PRIx32,
                     position, word, commit_mark(position));
  }
}
#endif

std::span<const Event> Spool::events(std::uint64_t from, std::uint64_t to) const {
  const std::uint64_t start = from & mask_;
  return {ring_ + start, static_cast<std::size_t>(std::min(to - from, options_.ring_events - start))};
}

void Spool::set_anchor(const ClockAnchor& anchor) {
  const std::uint32_t other = 1 - header_->anchor_index.load(std::memory_order_relaxed);
  header_->anchors[other] = anchor;
  header_->anchor_index.store(other, std::memory_order_release);
}

Counters Spool::counters_of_header() const {
  Counters counters{};
  for (std::size_t cause = 0; cause < kLossCauseCount; ++cause) {
    counters.lost[cause] = header_->lost[cause].load(std::memory_order_relaxed);
  }
  counters.empty_allocations = header_->empty_allocations.load(std::memory_order_relaxed);
  counters.reentered = header_->reentered.load(std::memory_order_relaxed);
  counters.unknown_stacks = header_->unknown_stacks.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace alloctrace
