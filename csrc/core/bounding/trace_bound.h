// Size limit on the trace of a running recording: a thread compacts the start of a long trace into a second file, which
// then replaces the trace. Hooks do not wait as long as this thread keeps up.
//
//   the trace grows to a share of the room | it is compacted, and grows on | the new blocks are appended, rename
//
// Spool, trace and second file together stay within the limit. If the thread falls behind, the writer waits, and events
// that no longer fit into the ring are lost and counted. If the compacted part alone is too large (endless new stacks,
// millions of live blocks), the recording continues beyond the limit, and the summary in the file records that.
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
#include "../recording/writer.h"

namespace alloctrace {

struct SizeLimitOptions {
  std::string path;
  std::uint64_t max_bytes = 0;                             // limit on all files together
  std::uint64_t other_bytes = 0;                           // part of max_bytes for the spool and one write
  std::uint64_t keep_ns = 0;                               // duration whose events stay uncompacted, room permitting
  std::pair<std::uint64_t, std::uint64_t> nodes_at_begin;  // see ReplayRun
};

class TraceBound : public FileBound {
 public:
  // Start the thread. Throws std::system_error if the system cannot.
  explicit TraceBound(const SizeLimitOptions& options);
  ~TraceBound() override;

  void between_blocks(TraceFile& file, std::uint64_t to_come, const std::function<bool()>& is_urgent) noexcept override;
  void stop() noexcept override;

 private:
  enum class State { kIdle, kRequested, kReady };

  void run();
  void compact(std::uint64_t end);
  bool copy(std::uint64_t end);
  void replace_trace(TraceFile& file);
  void discard_target();
  std::uint64_t limit_while_compacting() const;
  std::uint64_t first_kept(std::uint64_t end, bool& keeps_less) const;

  const SizeLimitOptions options_;
  const std::string second_path_;
  const double start_share_, kept_share_;  // of the room: trace size that starts compaction; events left uncompacted

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kIdle;
  std::uint64_t room_ = 0;            // bytes for the trace and the second file
  std::uint64_t overhead_bytes_ = 0;  // bytes of the last second file that are not events
  std::uint64_t next_size_ = 0;       // trace size that starts the next compaction
  std::uint64_t requested_end_ = 0;
  bool is_exceeded_ = false;
  bool is_stopping_ = false;

  std::atomic<std::uint64_t> written_{0};  // bytes of complete blocks in the trace
  std::atomic<bool> is_cancelled_{false};

  // Used by the thread alone; in state kReady, by the writer alone.
  std::shared_ptr<TraceReader> source_;
  std::unique_ptr<TraceFile> target_;
  std::uint64_t copied_ = 0;  // bytes of the source that are in the target
  std::thread thread_;
};

}  // namespace alloctrace
