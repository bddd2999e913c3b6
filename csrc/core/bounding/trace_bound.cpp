#include "trace_bound.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "../base/thread.h"
#include "../compaction/compacted_trace.h"

namespace alloctrace {
namespace {

// Shares of the room: the trace size that starts compaction, and the events before that to leave uncompacted.
constexpr double kStartShare = 0.3, kKeptShare = 0.1;
// The same with keep_ns: more events stay, so the second file is larger and compaction runs more often.
constexpr double kStartShareToKeep = 0.45, kMaxKeptShare = 0.3;
// Maximum bytes appended while the writer waits; the bytes before are appended in the background.
constexpr std::uint64_t kMaxFinalCopyBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kInitialOverhead = std::uint64_t{2} << 20;
// Lower priority than the program's own threads, yet high enough that the thread gets processor time.
constexpr int kNice = 5;

struct Cancelled {};

std::uint64_t share(std::uint64_t bytes, double fraction) {
  return static_cast<std::uint64_t>(static_cast<double>(bytes) * fraction);
}

}  // namespace

TraceBound::TraceBound(const SizeLimitOptions& options)
    : options_(options),
      second_path_(options.path + ".compaction"),
      start_share_(options.keep_ns != 0 ? kStartShareToKeep : kStartShare),
      kept_share_(options.keep_ns != 0 ? kMaxKeptShare : kKeptShare),
      overhead_bytes_(kInitialOverhead) {
  room_ = options.max_bytes - std::min(options.max_bytes, options.other_bytes);
  next_size_ = share(room_, start_share_);
  thread_ = start_thread([this] { run(); });
}

TraceBound::~TraceBound() { stop(); }

void TraceBound::stop() noexcept {
  is_cancelled_.store(true, std::memory_order_relaxed);
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  discard_target();
}

// Return the maximum trace size before the second file replaces it: bytes written until then are in both files.
std::uint64_t TraceBound::limit_while_compacting() const {
  if (is_exceeded_) return UINT64_MAX;
  const std::uint64_t second_bytes = overhead_bytes_ + share(room_, kept_share_);
  const std::uint64_t total = room_ + requested_end_;
  return total > second_bytes ? std::max((total - second_bytes) / 2, requested_end_) : requested_end_;
}

void TraceBound::between_blocks(TraceFile& file, std::uint64_t to_come,
                                const std::function<bool()>& is_urgent) noexcept {
  written_.store(file.bytes(), std::memory_order_release);
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_stopping_ || !file.is_published()) return;
  if (state_ == State::kIdle && file.bytes() >= next_size_) {
    // The names are written once more when the recording ends.
    overhead_bytes_ = std::max(overhead_bytes_, to_come);
    requested_end_ = file.bytes();
    state_ = State::kRequested;
    changed_.notify_all();
  }
  while (state_ == State::kRequested && file.bytes() > limit_while_compacting() && !is_stopping_ && !is_urgent()) {
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  if (state_ == State::kReady) replace_trace(file);
}

void TraceBound::run() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
  for (;;) {
    std::uint64_t end = 0;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return is_stopping_ || state_ == State::kRequested; });
      if (is_stopping_) return;
      end = requested_end_;
    }
    bool is_compacted = false;
    try {
      compact(end);
      is_compacted = true;
    } catch (...) {
      // Disk full, out of memory, or the recording ends. The trace is complete; retry when it has grown.
      discard_target();
    }
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (!is_compacted) {
        next_size_ = end + end / 8;
        is_exceeded_ |= next_size_ > limit_while_compacting();
      }
      state_ = is_compacted ? State::kReady : State::kIdle;
    }
    changed_.notify_all();
  }
}

// Return the first event to leave uncompacted: the last up to kKeptShare, with keep_ns recent ones up to kept_share_.
std::uint64_t TraceBound::first_kept(std::uint64_t end, bool& keeps_less) const {
  const std::vector<Chunk>& chunks = source_->chunks();
  const auto is_recent = [&](const Chunk& chunk) {
    return chunk.end.monotonic_ns + options_.keep_ns >= chunks.back().end.monotonic_ns;
  };
  std::uint64_t until = 0;
  for (const Chunk& chunk : chunks) {
    if (until > source_->compacted_until()) {
      const bool fits = chunk.payload_offset + share(room_, kept_share_) >= end;
      const bool should_stay = chunk.payload_offset + share(room_, kKeptShare) >= end || is_recent(chunk);
      if (fits && should_stay) break;
    }
    keeps_less |= options_.keep_ns != 0 && is_recent(chunk);
    until = chunk.end_sequence();
  }
  return until;
}

void TraceBound::compact(std::uint64_t end) {
  const auto check_cancelled = [this](double) {
    if (is_cancelled_.load(std::memory_order_relaxed)) throw Cancelled();
  };
  source_ = std::make_shared<TraceReader>(options_.path, "", check_cancelled, TraceReader::PathsOfHeader(), end);
  bool keeps_less = false;
  const std::uint64_t until = first_kept(end, keeps_less);
  if (until <= source_->compacted_until()) throw CompactionError("nothing to compact");
  CompactedPart part = compact_until(source_, until, options_.nodes_at_begin, check_cancelled);
  const std::uint64_t overhead = part.dictionary.size() + part.payload.size() + source_->header_json().size() + 1024;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    // The second file first lies beside the trace, then is the trace until the next compaction.
    const std::uint64_t new_bytes = overhead + (end - std::min(end, part.copy_offset));
    const std::uint64_t next = std::max(share(room_, start_share_), new_bytes + new_bytes / 4);
    is_exceeded_ = written_.load(std::memory_order_acquire) + new_bytes > room_ || next + new_bytes > room_;
    overhead_bytes_ = overhead;
    part.summary.max_bytes = options_.max_bytes;
    part.summary.is_exceeded = is_exceeded_;
    part.summary.keep_ns = options_.keep_ns;
    part.summary.keeps_less = keeps_less;
  }
  unlink(second_path_.c_str());  // left by a killed process
  target_ = std::make_unique<TraceFile>(second_path_, false, source_->session_id(), source_->first_anchor(),
                                        kCompactedFormatVersion);
  target_->publish();
  write_compacted(*target_, *source_, part, source_->file(), end);
  copied_ = end;
  // Append blocks written in the meantime, except the last part.
  for (std::uint64_t now; (now = written_.load(std::memory_order_acquire)) > copied_ + kMaxFinalCopyBytes;) {
    check_cancelled(1);
    if (!copy(now)) throw TraceFileError("no room");
  }
  target_->sync();
}

bool TraceBound::copy(std::uint64_t end) {
  Bytes buffer;
  while (copied_ < end) {
    buffer.resize(std::min<std::uint64_t>(kMaxFinalCopyBytes, end - copied_));
    if (!source_->file().read(buffer.data(), buffer.size(), copied_)) return false;
    if (!target_->append_raw({reinterpret_cast<const char*>(buffer.data()), buffer.size()})) return false;
    copied_ += buffer.size();
  }
  return true;
}

// At every instant the trace's name refers to a complete file, old or compacted, with all blocks.
void TraceBound::replace_trace(TraceFile& file) {
  const bool is_replaced = copy(file.bytes()) && file.switch_to(*target_, second_path_);
  if (is_replaced) {
    target_.reset();
    next_size_ = std::max(share(room_, start_share_), file.bytes() + file.bytes() / 4);
    written_.store(file.bytes(), std::memory_order_release);
  } else {
    next_size_ = file.bytes() + file.bytes() / 8;
    is_exceeded_ |= next_size_ > room_;
  }
  discard_target();
  state_ = State::kIdle;
}

void TraceBound::discard_target() {
  if (target_) target_->remove();
  target_.reset();
  source_.reset();
}

}  // namespace alloctrace
