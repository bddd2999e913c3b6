// The writer thread, which moves events from the spool to the trace file. It never calls Python, and the program's
// signal handlers never run on it (base/thread.h).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../format/event_codec.h"
#include "../format/trace_file.h"
#include "source_lines.h"
#include "spool.h"
#include "stack_table.h"
#include "wait.h"

namespace alloctrace {

// Size limit of a growing trace. An interface: the implementation (csrc/core/bounding) depends on the trace reader.
class FileBound {
 public:
  virtual ~FileBound() = default;
  // Replace the file by a compacted one, or wait for room, if the limit requires it. Called on the writer thread
  // between two blocks. Must not wait once `is_ending` returns true. closing_bytes: what the end of the recording adds.
  virtual void between_blocks(TraceFile& file, std::uint64_t closing_bytes,
                              const std::function<bool()>& is_ending) noexcept = 0;
  // Stop replacing the file and remove any file beside it: the recording ends.
  virtual void stop() noexcept = 0;
};

// Contract between the program's threads and the writer thread:
// - Any thread may call flush() and announce_stop(), also at once. stop() is called once; the destructor calls it if
//   nobody did.
// - After the constructor, only the writer thread appends to the file and consumes events and definitions of the spool.
// - Events and definitions are released from the spool only after their block is in the file: a reader finds each in
//   the spool or in the file, also if the process is killed. What a failed write left of a block is removed.
// - Definitions are in the file before the events that refer to them; events are in the order of their positions.
// - The writer discards nothing. While the file cannot be written, events stay in the spool, and once it is full, hooks
//   count new ones as lost without waiting. Of a truncated spool, whose events are gone, it writes their number.
class Writer {
 public:
  // Write the header block (throws TraceFileError), and start the thread. bound: the file's size limit, or nullptr.
  Writer(TraceFile& file, Spool& spool, WakeSignal& wake, StackTable& stacks, SourceLines& sources,
         const std::string& header_json, FileBound* bound = nullptr);
  ~Writer();

  // Called every kPollInterval while a call waits for the file, which may hang: returns true to end the wait.
  using ShouldGiveUp = std::function<bool()>;

  // Wait until every event so far is in the file. Returns false if the file cannot be written or the caller gave up.
  bool flush(const ShouldGiveUp& should_give_up = {});

  // Stop waiting for compactions: the recording is about to end.
  void announce_stop() { ending_ = true; }

  // Drain the spool, write the dictionary and `end_json`, and end the thread. No hook may run any more. Returns false
  // if something could not be written: the spool then still has it.
  bool stop(const std::string& end_json, const ShouldGiveUp& should_give_up = {});
  // Return whether the caller of stop() gave up. The thread then still runs and uses the constructor's arguments.
  bool is_abandoned() const { return abandoned_; }

 private:
  static constexpr std::chrono::milliseconds kPollInterval{100};

  template <typename IsDone>
  bool wait(std::unique_lock<std::mutex>& lock, const ShouldGiveUp& should_give_up, IsDone is_done);
  void run();
  bool drain(bool drain_all);
  bool write_definitions();
  bool write_events(std::uint64_t end);
  bool write_truncation_loss();
  bool write_dictionary();
  bool write_end(const std::string& end_json);
  void end_by_signal();
  BlockHeader make_header(BlockType type) const;
  bool report_outcome(bool written);

  TraceFile& file_;
  Spool& spool_;
  WakeSignal& wake_;
  StackTable& stacks_;
  SourceLines& sources_;
  FileBound* bound_;
  EventEncoder encoder_;
  Bytes pending_, source_lines_;  // to be written next; the records among them that are not in the spool
  std::string header_json_;
  Definitions names_;  // all definitions except frames, which are in the stack table
  std::uint64_t dictionary_bytes_ = 0;
  std::uint64_t dictionary_end_ = 0;
  std::uint64_t last_block_ns_ = 0;
  // After a truncation of the spool: number of losses written to the trace, and of `lost` events that report them.
  std::uint64_t reported_loss_ = 0, loss_events_ = 0;

  std::atomic<bool> ending_{false};
  std::mutex mutex_;
  std::condition_variable progress_;
  std::uint64_t flush_requests_ = 0, flushes_done_ = 0;
  bool flush_succeeded_ = true;
  bool stopping_ = false;
  bool stopped_cleanly_ = false;
  bool ended_ = false;  // the thread has finished
  bool abandoned_ = false;
  std::string end_json_;
  std::thread thread_;
};

}  // namespace alloctrace
