#include "writer.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "../base/thread.h"
#include "../format/event_fields.h"
#include "termination_signal.h"

namespace alloctrace {
namespace {

// Maximum number of events in a block: enough for the codec's predictions, few enough to lose or to decode at once.
constexpr std::uint64_t kBlockEvents = 65'536;
// Maximum age of an event that is not in the trace yet, in ns.
constexpr std::uint64_t kMaxBlockAgeNs = 1'000'000'000;
constexpr std::uint64_t kSleepMs = 250;
// Maximum wait for source lines after SIGTERM: a part of kMaxShutdownTime (termination_signal.cpp).
constexpr std::chrono::milliseconds kSourceTimeout{500};
// Bytes of trace between two dictionaries, which keep the names of a long trace readable where a part is corrupt.
constexpr std::uint64_t kDictionaryIntervalBytes = std::uint64_t{256} << 20;
constexpr std::uint32_t kMaxBlockFrames = 1 << 16;
constexpr std::size_t kMaxIdleBufferBytes = std::size_t{1} << 20;

}  // namespace

Writer::Writer(TraceFile& file, Spool& spool, WakeSignal& wake, StackTable& stacks, SourceLines& sources,
               const std::string& header_json, FileBound* bound)
    : file_(file),
      spool_(spool),
      wake_(wake),
      stacks_(stacks),
      sources_(sources),
      bound_(bound),
      header_json_(header_json),
      last_block_ns_(clock_nanoseconds(CLOCK_MONOTONIC)) {
  if (!file_.append(make_header(BlockType::kHeader), header_json_)) {
    throw TraceFileError("cannot write the trace " + file_.path() + ": no room on its file system?");
  }
  names_.forward_frames_to([this](const FrameRecord& frame) { sources_.add_frame(names_, frame); });
  thread_ = start_thread([this] { run(); });
}

Writer::~Writer() {
  if (thread_.joinable()) stop("{}");
}

// Wait until is_done() is true; returns false if the caller gave up.
template <typename IsDone>
bool Writer::wait(std::unique_lock<std::mutex>& lock, const ShouldGiveUp& should_give_up, IsDone is_done) {
  while (!progress_.wait_for(lock, kPollInterval, is_done)) {
    if (!should_give_up) continue;
    lock.unlock();
    const bool gave_up = should_give_up();
    lock.lock();
    if (gave_up) return false;
  }
  return true;
}

bool Writer::flush(const ShouldGiveUp& should_give_up) {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::uint64_t request = ++flush_requests_;
  wake_.post();
  return wait(lock, should_give_up, [&] { return flushes_done_ >= request || stopping_; }) && flush_succeeded_;
}

bool Writer::stop(const std::string& end_json, const ShouldGiveUp& should_give_up) {
  spool_.report_losses();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    end_json_ = end_json;
    stopping_ = true;
  }
  wake_.post();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    abandoned_ = !wait(lock, should_give_up, [&] { return ended_; });
  }
  if (abandoned_) return false;
  thread_.join();
  return stopped_cleanly_;
}

void Writer::run() {
  for (;;) {
    wake_.wait_ms(kSleepMs);
    if (TerminationSignal::received()) return end_by_signal();
    bool stopping;
    std::uint64_t requests;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping = stopping_;
      requests = flush_requests_;
    }
    const bool drain_all = stopping || requests != flushes_done_;
    bool written;
    try {
      written = report_outcome(drain(drain_all));
      if (stopping && written) {
        written = write_end(end_json_);
      }
    } catch (...) {
      // Out of memory, most likely. All events are still in the spool; the next iteration tries again.
      written = false;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      flushes_done_ = requests;
      flush_succeeded_ = written && !spool_.is_truncated();
      stopped_cleanly_ = stopping && written;
      ended_ = stopping;
    }
    progress_.notify_all();
    if (stopping) return;
  }
}

bool Writer::write_end(const std::string& end_json) {
  if (bound_) bound_->stop();
  // Report losses from a full ring after which no event was pushed: the ring has room now.
  spool_.report_losses();
  return drain(true) && write_dictionary() && file_.append(make_header(BlockType::kEnd), end_json);
}

// Complete the trace and end the process. Hooks still run: events after the last drain are not in the trace.
void Writer::end_by_signal() {
  bool written = false;
  try {
    written = drain(true);
    sources_.wait(kSourceTimeout);
    written = written && write_end(R"({"reason": "SIGTERM"})");
  } catch (...) {
    // Events that could not be written are still in the spool.
  }
  if (written) spool_.remove_file();
  TerminationSignal::resend();
  // resend() has returned: the program has installed a handler and goes on without being recorded.
  spool_.set_write_failed(true);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = ended_ = true;
    stopped_cleanly_ = written;
    flush_succeeded_ = false;
  }
  progress_.notify_all();
}

// Write events to the trace: with `drain_all` all that are claimed so far, else only blocks that are full or old.
bool Writer::drain(bool drain_all) {
  // At most a quarter of the ring, as hooks wake this thread: a small ring never contains kBlockEvents.
  const std::uint64_t block_events = std::min(kBlockEvents, std::max<std::uint64_t>(spool_.capacity() / 4, 1));
  const std::uint64_t target = spool_.header().head.load(std::memory_order_acquire);
  for (;;) {
    const std::uint64_t tail = spool_.tail();
    const std::uint64_t end = spool_.consume(kBlockEvents);
    if (!spool_.save_totals()) return (loss_events_ != 0 && !drain_all) || write_truncation_loss();
    const bool is_old = clock_nanoseconds(CLOCK_MONOTONIC) - last_block_ns_ >= kMaxBlockAgeNs;
    if (end == tail && drain_all && tail < target) {
      // A hook has claimed its slot and not committed it yet: nanoseconds, unless its thread was preempted.
      timespec nap{0, 20'000};
      nanosleep(&nap, nullptr);
      continue;
    }
    // Write a partial block when half of the ring is claimed: a hook's preempted thread may hold up a full block.
    const bool is_half_full = spool_.header().head.load(std::memory_order_relaxed) - tail > spool_.capacity() / 2;
    const bool is_due = end - tail >= block_events || ((drain_all || is_old || is_half_full) && end > tail);
    // Write definitions after consume(): they then include all that the consumed events refer to.
    if (!write_definitions()) return false;
    if (!is_due) break;
    if (!write_events(end)) return false;
    if (bound_) {
      bound_->between_blocks(file_, header_json_.size() + dictionary_bytes_,
                             [this] { return ending_ || TerminationSignal::received(); });
      dictionary_end_ = std::min(dictionary_end_, file_.bytes());  // a compacted file may have replaced it
    }
    // Drain only the events claimed at the beginning: hooks may refill the ring as fast as it is drained, and this
    // function would never return to a flush or stop request.
    if (end >= target) break;
  }
  if (spool_.is_truncated()) return write_truncation_loss();
  return file_.bytes() - dictionary_end_ < kDictionaryIntervalBytes || write_dictionary();
}

bool Writer::write_definitions() {
  if (pending_.capacity() > kMaxIdleBufferBytes) pending_ = {};
  pending_.clear();
  const std::uint64_t head = spool_.definitions().copy_pending(pending_);
  if (spool_.is_truncated()) return true;
  sources_.drain_records(source_lines_);
  pending_.insert(pending_.end(), source_lines_.begin(), source_lines_.end());
  if (pending_.empty()) return true;
  if (!file_.append(make_header(BlockType::kDefinitions), pending_)) return false;
  names_.add(pending_.data(), pending_.size());
  sources_.request_lines();
  dictionary_bytes_ += pending_.size();
  spool_.definitions().release(head);
  source_lines_.clear();
  return true;
}

bool Writer::write_events(std::uint64_t end) {
  const std::uint64_t tail = spool_.tail();
  const auto first = spool_.events(tail, end);
  const auto second = spool_.events(tail + first.size(), end);
  BlockHeader header = make_header(BlockType::kEvents);
  header.event_count = end - tail;
  const Bytes& payload = encoder_.encode(first, second, file_.next_begin().counter);
  if (spool_.is_truncated()) return true;
  if (!file_.append(header, payload)) return false;
  spool_.release(end);
  last_block_ns_ = header.end.monotonic_ns;
  return true;
}

// Write one `lost` event for the unreported events that were in a truncated spool or came after its truncation.
bool Writer::write_truncation_loss() {
  const std::uint64_t missing = spool_.missing_events();
  if (missing == reported_loss_) return true;
  Event lost{};
  lost.kind = EventKind::kLost;
  lost.time = read_counter();
  LostFields(lost).cause = static_cast<std::uint64_t>(LossCause::kWriteFailed);
  LostFields(lost).count = missing - reported_loss_;
  BlockHeader header = make_header(BlockType::kEvents);
  header.event_count = 1;
  if (!file_.append(header, encoder_.encode({&lost, 1}, {}, file_.next_begin().counter))) return false;
  reported_loss_ = missing;
  ++loss_events_;
  return true;
}

// Write the header and every definition once more: a corrupt part elsewhere in the file then loses no names.
bool Writer::write_dictionary() {
  if (!file_.append(make_header(BlockType::kHeader), header_json_)) return false;
  Bytes records = names_.records();
  std::uint32_t next = stacks_.put_frames(1, kMaxBlockFrames, records);
  for (std::uint32_t end = 0; end != next;) {
    if (!file_.append(make_header(BlockType::kDictionary), records)) return false;
    records.clear();
    end = std::exchange(next, stacks_.put_frames(next, kMaxBlockFrames, records));
  }
  dictionary_end_ = file_.bytes();
  return true;
}

BlockHeader Writer::make_header(BlockType type) const {
  BlockHeader header{};
  header.type = type;
  header.first_sequence = spool_.tail() + loss_events_;
  header.end = ClockAnchor::now();
  spool_.set_anchor(header.end);
  header.counters = spool_.counters();
  return header;
}

bool Writer::report_outcome(bool written) {
  spool_.set_write_failed(!written);
  if (!written) {
    // Sleep before the next attempt: the disk stays full for a while, and hooks no longer wait for room.
    timespec nap{0, 100'000'000};
    nanosleep(&nap, nullptr);
  }
  return written;
}

}  // namespace alloctrace
