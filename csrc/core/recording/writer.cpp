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

// Events in a block: enough for the predictions to learn, few enough to lose or to decode at a time.
constexpr std::uint64_t kBlockEvents = 65'536;
// A reader of a running program's trace is at most this far behind.
constexpr std::uint64_t kMaxBlockAgeNs = 1'000'000'000;
constexpr std::uint64_t kSleepMs = 250;
// How long a program that SIGTERM ends waits for source lines: a part of what it has (termination_signal.h).
constexpr std::chrono::milliseconds kSourcePatience{500};
// How often the dictionary is repeated, so that a trace of days that is damaged anywhere keeps its names.
constexpr std::uint64_t kDictionaryEveryBytes = std::uint64_t{256} << 20;
// How many of its frames are put into a block.
constexpr std::uint32_t kFramesAtOnce = 1 << 16;
// A buffer that had to be larger for once is given back.
constexpr std::size_t kBufferKept = std::size_t{1} << 20;

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
  if (!file_.append(block(BlockType::kHeader), header_json_)) {
    throw TraceFileError("cannot write the trace " + file_.path() + ": no room on its file system?");
  }
  names_.forward_frames_to([this](const FrameRecord& frame) { sources_.find(names_, frame); });
  thread_ = start_thread([this] { run(); });
}

Writer::~Writer() {
  if (thread_.joinable()) stop("{}");
}

// False: the caller gave up.
template <typename IsDone>
bool Writer::wait(std::unique_lock<std::mutex>& lock, const GivesUp& gives_up, IsDone is_done) {
  while (!progress_.wait_for(lock, kPatience, is_done)) {
    if (!gives_up) continue;
    lock.unlock();
    const bool is_over = gives_up();
    lock.lock();
    if (is_over) return false;
  }
  return true;
}

bool Writer::flush(const GivesUp& gives_up) {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::uint64_t mine = ++flush_requests_;
  wake_.post();
  return wait(lock, gives_up, [&] { return flushes_done_ >= mine || stopping_; }) && flush_succeeded_;
}

bool Writer::stop(const std::string& end_json, const GivesUp& gives_up) {
  spool_.report_losses();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    end_json_ = end_json;
    stopping_ = true;
  }
  wake_.post();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    left_behind_ = !wait(lock, gives_up, [&] { return ended_; });
  }
  if (left_behind_) return false;
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
    const bool everything = stopping || requests != flushes_done_;
    bool written;
    try {
      written = note_outcome(drain(everything));
      if (stopping && written) {
        written = write_end(end_json_);
      }
    } catch (...) {
      // Out of memory, most likely. The spool still has everything; the next round tries again.
      written = false;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      flushes_done_ = requests;
      flush_succeeded_ = written && !spool_.is_gone();
      stopped_cleanly_ = stopping && written;
      ended_ = stopping;
    }
    progress_.notify_all();
    if (stopping) return;
  }
}

bool Writer::write_end(const std::string& end_json) {
  if (bound_) bound_->stop();
  // Losses from a full ring that no later event has reported: now there is room.
  spool_.report_losses();
  return drain(true) && repeat_names() && file_.append(block(BlockType::kEnd), end_json);
}

// Hooks still run: what they record from now on is not in the trace.
void Writer::end_by_signal() {
  bool written = false;
  try {
    written = drain(true);
    sources_.wait(kSourcePatience);
    written = written && write_end(R"({"reason": "SIGTERM"})");
  } catch (...) {
    // The spool has what could not be written.
  }
  if (written) spool_.remove_file();
  TerminationSignal::pass_on();
  // Still here: the program has installed a handler. It goes on without being recorded.
  spool_.set_write_failed(true);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = ended_ = true;
    stopped_cleanly_ = written;
    flush_succeeded_ = false;
  }
  progress_.notify_all();
}

// `everything`: all events claimed so far, else only blocks that are full or old.
bool Writer::drain(bool everything) {
  // A quarter of the ring at the latest, when hooks wake us: in a small ring a full block would never accumulate.
  const std::uint64_t block_events = std::min(kBlockEvents, std::max<std::uint64_t>(spool_.capacity() / 4, 1));
  const std::uint64_t target = spool_.header().head.load(std::memory_order_acquire);
  for (;;) {
    const std::uint64_t tail = spool_.tail();
    const std::uint64_t end = spool_.take(kBlockEvents);
    if (!spool_.remember()) return (loss_events_ != 0 && !everything) || write_loss_of_spool();
    const bool aged = clock_nanoseconds(CLOCK_MONOTONIC) - last_block_ns_ >= kMaxBlockAgeNs;
    if (end == tail && everything && tail < target) {
      // A hook is between claiming its slot and filling it: nanoseconds, unless its thread lost the processor.
      timespec nap{0, 20'000};
      nanosleep(&nap, nullptr);
      continue;
    }
    // A ring that is half claimed cannot wait for a full block behind a hook that lost the processor.
    const bool filling = spool_.header().head.load(std::memory_order_relaxed) - tail > spool_.capacity() / 2;
    const bool enough = end - tail >= block_events || ((everything || aged || filling) && end > tail);
    // After the events were seen, so that the definitions they name are among those copied now.
    if (!write_definitions()) return false;
    if (!enough) break;
    if (!write_events(end)) return false;
    if (bound_) {
      bound_->between_blocks(file_, header_json_.size() + dictionary_bytes_,
                             [this] { return ending_ || TerminationSignal::received(); });
      dictionary_written_at_ = std::min(dictionary_written_at_, file_.bytes());  // it may be another file now
    }
    // Hooks may refill the ring as fast as it is emptied: only what was there at the beginning is drained, or a request
    // to flush or to stop would never be seen.
    if (end >= target) break;
  }
  if (spool_.is_gone()) return write_loss_of_spool();
  return file_.bytes() - dictionary_written_at_ < kDictionaryEveryBytes || repeat_names();
}

bool Writer::write_definitions() {
  if (pending_.capacity() > kBufferKept) pending_ = {};
  pending_.clear();
  const std::uint64_t head = spool_.definitions().copy_pending(pending_);
  if (spool_.is_gone()) return true;
  sources_.take_records(source_lines_);
  pending_.insert(pending_.end(), source_lines_.begin(), source_lines_.end());
  if (pending_.empty()) return true;
  if (!file_.append(block(BlockType::kDefinitions), pending_)) return false;
  names_.add(pending_.data(), pending_.size());
  sources_.request();
  dictionary_bytes_ += pending_.size();
  spool_.definitions().release(head);
  source_lines_.clear();
  return true;
}

bool Writer::write_events(std::uint64_t end) {
  const std::uint64_t tail = spool_.tail();
  const auto first = spool_.events(tail, end);
  const auto second = spool_.events(tail + first.size(), end);
  BlockHeader header = block(BlockType::kEvents);
  header.event_count = end - tail;
  const Bytes& payload = encoder_.encode(first, second, file_.next_begin().counter);
  if (spool_.is_gone()) return true;
  if (!file_.append(header, payload)) return false;
  spool_.release(end);
  last_block_ns_ = header.end.monotonic_ns;
  return true;
}

// In place of the events that were in a spool which is gone, and of all that came after them so far.
bool Writer::write_loss_of_spool() {
  const std::uint64_t missing = spool_.missing();
  if (missing == loss_written_) return true;
  Event lost{};
  lost.kind = EventKind::kLost;
  lost.time = read_counter();
  LostFields(lost).cause = static_cast<std::uint64_t>(LossCause::kWriteFailed);
  LostFields(lost).count = missing - loss_written_;
  BlockHeader header = block(BlockType::kEvents);
  header.event_count = 1;
  if (!file_.append(header, encoder_.encode({&lost, 1}, {}, file_.next_begin().counter))) return false;
  loss_written_ = missing;
  ++loss_events_;
  return true;
}

// The header and every definition once more: then no damage to another part of the file can cost a name.
bool Writer::repeat_names() {
  if (!file_.append(block(BlockType::kHeader), header_json_)) return false;
  Bytes records = names_.records();
  std::uint32_t next = stacks_.put_frames(1, kFramesAtOnce, records);
  // One block, unless there are very many frames.
  for (std::uint32_t end = 0; end != next;) {
    if (!file_.append(block(BlockType::kDictionary), records)) return false;
    records.clear();
    end = std::exchange(next, stacks_.put_frames(next, kFramesAtOnce, records));
  }
  dictionary_written_at_ = file_.bytes();
  return true;
}

BlockHeader Writer::block(BlockType type) const {
  BlockHeader header{};
  header.type = type;
  header.first_sequence = spool_.tail() + loss_events_;
  header.end = ClockAnchor::now();
  spool_.set_anchor(header.end);
  header.counters = spool_.counters();
  return header;
}

bool Writer::note_outcome(bool written) {
  spool_.set_write_failed(!written);
  if (!written) {
    // No retry at once: the disk will not have emptied in a microsecond, and hooks no longer wait for us.
    timespec nap{0, 100'000'000};
    nanosleep(&nap, nullptr);
  }
  return written;
}

}  // namespace alloctrace
