#include "trace_bound.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "../base/thread.h"
#include "../compaction/folded_file.h"

namespace alloctrace {
namespace {

// Of the room: where folding begins, and how much of the events before that stays as it is.
constexpr double kBegin = 0.3, kKept = 0.1;
// Where the last minutes are to stay, as far as there is room for them: what is beside the trace is larger then, and it
// is folded more often.
constexpr double kBeginToKeep = 0.45, kMostKept = 0.3;
// What is appended while the writer waits; the rest has been before.
constexpr std::uint64_t kLastPart = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnknownFold = std::uint64_t{2} << 20;
// Below the program's own threads, though not so far that it never gets a turn.
constexpr int kNice = 5;

struct GivenUp {};

std::uint64_t share(std::uint64_t bytes, double of) {
  return static_cast<std::uint64_t>(static_cast<double>(bytes) * of);
}

}  // namespace

TraceBound::TraceBound(const BoundOptions& options)
    : options_(options),
      beside_(options.path + ".compaction"),
      begin_(options.keep_ns != 0 ? kBeginToKeep : kBegin),
      kept_(options.keep_ns != 0 ? kMostKept : kKept),
      folded_bytes_(kUnknownFold) {
  room_ = options.max_bytes - std::min(options.max_bytes, options.other_bytes);
  next_ = share(room_, begin_);
  thread_ = start_thread([this] { run(); });
}

TraceBound::~TraceBound() { stop(); }

void TraceBound::stop() noexcept {
  gives_up_.store(true, std::memory_order_relaxed);
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  forget();
}

// How large the trace may be before the folded one is in its place: what comes until then is for a time in both.
std::uint64_t TraceBound::limit_while_folding() const {
  if (is_exceeded_) return UINT64_MAX;
  const std::uint64_t other = folded_bytes_ + share(room_, kept_);
  const std::uint64_t both = room_ + wanted_end_;
  return both > other ? std::max((both - other) / 2, wanted_end_) : wanted_end_;
}

void TraceBound::between_blocks(TraceFile& file, std::uint64_t to_come,
                                const std::function<bool()>& is_urgent) noexcept {
  written_.store(file.bytes(), std::memory_order_release);
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopping_ || !file.is_published()) return;
  if (state_ == State::kIdle && file.bytes() >= next_) {
    // At the end the names are written once more.
    folded_bytes_ = std::max(folded_bytes_, to_come);
    wanted_end_ = file.bytes();
    state_ = State::kWanted;
    changed_.notify_all();
  }
  while (state_ == State::kWanted && file.bytes() > limit_while_folding() && !stopping_ && !is_urgent()) {
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  if (state_ == State::kReady) put_in_place(file);
}

void TraceBound::run() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
  for (;;) {
    std::uint64_t end = 0;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || state_ == State::kWanted; });
      if (stopping_) return;
      end = wanted_end_;
    }
    bool is_made = false;
    try {
      fold(end);
      is_made = true;
    } catch (...) {
      // No room on the disk, no memory, or the recording ends. The trace is whole, and is tried again when it has
      // grown.
      forget();
    }
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (!is_made) {
        next_ = end + end / 8;
        is_exceeded_ |= next_ > limit_while_folding();
      }
      state_ = is_made ? State::kReady : State::kIdle;
    }
    changed_.notify_all();
  }
}

// The first event that is not to be folded: where what may stay begins, later where the last minutes begin later.
std::uint64_t TraceBound::first_kept(std::uint64_t end, bool& keeps_less) const {
  const std::vector<Chunk>& chunks = source_->chunks();
  const auto ends_in_time = [&](const Chunk& chunk) {
    return chunk.end.monotonic_ns + options_.keep_ns >= chunks.back().end.monotonic_ns;
  };
  std::uint64_t until = 0;
  for (const Chunk& chunk : chunks) {
    if (until > source_->folded_until()) {
      const bool fits = chunk.payload_offset + share(room_, kept_) >= end;
      const bool is_wanted = chunk.payload_offset + share(room_, kKept) >= end || ends_in_time(chunk);
      if (fits && is_wanted) break;
    }
    keeps_less |= options_.keep_ns != 0 && ends_in_time(chunk);
    until = chunk.end_sequence();
  }
  return until;
}

void TraceBound::fold(std::uint64_t end) {
  const auto go_on = [this](double) {
    if (gives_up_.load(std::memory_order_relaxed)) throw GivenUp();
  };
  source_ = std::make_shared<TraceReader>(options_.path, "", go_on, TraceReader::PathsOfHeader(), end);
  bool keeps_less = false;
  const std::uint64_t until = first_kept(end, keeps_less);
  if (until <= source_->folded_until()) throw FoldingError("nothing to compact");
  FoldedPart part = fold_until(source_, until, options_.nodes_at_begin, go_on);
  const std::uint64_t sums = part.dictionary.size() + part.payload.size() + source_->header_json().size() + 1024;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    // Beside the trace, then as the trace until it is folded again.
    const std::uint64_t made = sums + (end - std::min(end, part.copied_from));
    const std::uint64_t next = std::max(share(room_, begin_), made + made / 4);
    is_exceeded_ = written_.load(std::memory_order_acquire) + made > room_ || next + made > room_;
    folded_bytes_ = sums;
    part.summary.max_bytes = options_.max_bytes;
    part.summary.is_exceeded = is_exceeded_;
    part.summary.keep_ns = options_.keep_ns;
    part.summary.keeps_less = keeps_less;
  }
  unlink(beside_.c_str());  // of a process that was killed
  target_ =
      std::make_unique<TraceFile>(beside_, false, source_->session_id(), source_->first_anchor(), kFoldedFormatVersion);
  target_->publish();
  write_folded(*target_, *source_, part, source_->file(), end);
  copied_ = end;
  // What was written in the meantime, but for a last part.
  for (std::uint64_t now; (now = written_.load(std::memory_order_acquire)) > copied_ + kLastPart;) {
    go_on(1);
    if (!copy(now)) throw TraceFileError("no room");
  }
  target_->sync();
}

bool TraceBound::copy(std::uint64_t end) {
  Bytes some;
  while (copied_ < end) {
    some.resize(std::min<std::uint64_t>(kLastPart, end - copied_));
    if (!source_->file().read(some.data(), some.size(), copied_)) return false;
    if (!target_->append_raw({reinterpret_cast<const char*>(some.data()), some.size()})) return false;
    copied_ += some.size();
  }
  return true;
}

// At any moment the trace's name stands for a whole file: the long one or the folded one, both with all blocks.
void TraceBound::put_in_place(TraceFile& file) {
  const bool is_there = copy(file.bytes()) && file.become(*target_, beside_);
  if (is_there) {
    target_.reset();
    next_ = std::max(share(room_, begin_), file.bytes() + file.bytes() / 4);
    written_.store(file.bytes(), std::memory_order_release);
  } else {
    next_ = file.bytes() + file.bytes() / 8;
    is_exceeded_ |= next_ > room_;
  }
  forget();
  state_ = State::kIdle;
}

void TraceBound::forget() {
  if (target_) target_->remove();
  target_.reset();
  source_.reset();
}

}  // namespace alloctrace
