// Keeps the trace of a running recording below a size: when it is long, a thread of ours folds its beginning into a
// file beside it, which takes its place. Hooks are never waited for, nor do they wait, as long as the thread keeps up.
//
//   the trace grows to a part of the room | it is folded, and goes on growing | what came meanwhile is appended, rename
//
// The spool, the trace and the file beside it are together never larger than what was asked for. Where the thread
// cannot keep up, the writer waits, and what does not fit into the ring is lost and counted. Where the sums alone are
// too large (endless new stacks, millions of live blocks), recording goes on, the file is larger, and its fold says so.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "../format/trace_file.h"
#include "../reading/trace_reader.h"
#include "../recording/file_bound.h"

namespace alloctrace {

struct BoundOptions {
  std::string path;
  std::uint64_t max_bytes = 0;    // of all files together
  std::uint64_t other_bytes = 0;  // of which the spool takes these, and what is written at once
  std::uint64_t keep_ns = 0;      // the events of so long are not folded, if they fit
  std::pair<std::uint64_t, std::uint64_t> nodes_at_begin;  // see ReplayRun
};

class TraceBound : public FileBound {
 public:
  // Throws std::system_error where no thread can be started.
  explicit TraceBound(const BoundOptions& options);
  ~TraceBound() override;

  void between_blocks(TraceFile& file, std::uint64_t to_come, const std::function<bool()>& is_urgent) noexcept override;
  void stop() noexcept override;

 private:
  enum class State { kIdle, kWanted, kReady };

  void run();
  void fold(std::uint64_t end);
  bool copy(std::uint64_t end);
  void put_in_place(TraceFile& file);
  void forget();
  std::uint64_t limit_while_folding() const;
  std::uint64_t first_kept(std::uint64_t end, bool& keeps_less) const;

  const BoundOptions options_;
  const std::string beside_;   // the path of the file that is made
  const double begin_, kept_;  // of the room: where folding begins, and how much of the events before that may stay

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kIdle;
  std::uint64_t room_ = 0;          // for the trace and the file beside it
  std::uint64_t folded_bytes_ = 0;  // of what is not events, in the last file that was made
  std::uint64_t next_ = 0;          // bytes of the trace at which it is folded again
  std::uint64_t wanted_end_ = 0;
  bool is_exceeded_ = false;
  bool stopping_ = false;

  std::atomic<std::uint64_t> written_{0};  // whole blocks of the trace
  std::atomic<bool> gives_up_{false};

  // Of the thread; of the writer where it is ready.
  std::shared_ptr<TraceReader> source_;
  std::unique_ptr<TraceFile> target_;
  std::uint64_t copied_ = 0;  // of the source
  std::thread thread_;
};

}  // namespace alloctrace
