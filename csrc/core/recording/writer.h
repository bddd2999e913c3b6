// The writer thread: drains the spool into the trace file. It never touches Python, and the program's signal handlers
// never run on it (base/thread.h).
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
#include "file_bound.h"
#include "source_lines.h"
#include "spool.h"
#include "stack_table.h"
#include "wake_signal.h"

namespace alloctrace {

class Writer {
 public:
  // Writes the header block at once (throws TraceFileError when that fails), then starts the thread.
  // bound: nullptr, or who keeps the file small.
  Writer(TraceFile& file, Spool& spool, WakeSignal& wake, StackTable& stacks, SourceLines& sources,
         const std::string& header_json, FileBound* bound = nullptr);
  ~Writer();

  // Asked every tenth of a second while a call waits for the file, which may take forever: whether to wait no more.
  using GivesUp = std::function<bool()>;

  // Waits until every event before now is in the file. False when the file cannot be written, or the caller gave up.
  bool flush(const GivesUp& gives_up = {});

  // The recording is about to end: from now on nothing waits for a compaction.
  void announce_stop() { ending_ = true; }

  // Drains all, writes the dictionary and `end_json`, ends the thread. No hook may run any more. False when something
  // could not be written: the spool then still has it.
  bool stop(const std::string& end_json, const GivesUp& gives_up = {});
  // The caller of stop() gave up: the thread still runs, and needs all that it was made with as long as it does.
  bool is_left_behind() const { return left_behind_; }

 private:
  static constexpr std::chrono::milliseconds kPatience{100};

  template <typename IsDone>
  bool wait(std::unique_lock<std::mutex>& lock, const GivesUp& gives_up, IsDone is_done);
  void run();
  bool drain(bool everything);
  bool write_definitions();
  bool write_events(std::uint64_t end);
  bool write_loss_of_spool();
  bool repeat_names();
  bool write_end(const std::string& end_json);
  void end_by_signal();
  BlockHeader block(BlockType type) const;
  bool note_outcome(bool written);

  TraceFile& file_;
  Spool& spool_;
  WakeSignal& wake_;
  StackTable& stacks_;
  SourceLines& sources_;
  FileBound* bound_;
  EventEncoder encoder_;
  Bytes pending_, source_lines_;  // definitions on their way to the file; those among them that are not in the spool
  std::string header_json_;
  Definitions names_;  // all definitions so far but the frames, which are in the stack table
  std::uint64_t dictionary_bytes_ = 0;
  std::uint64_t dictionary_written_at_ = 0;
  std::uint64_t last_block_ns_ = 0;
  // After the spool is gone: the number of lost events that were written, and the number of `lost` events for them.
  std::uint64_t loss_written_ = 0, loss_events_ = 0;

  std::atomic<bool> ending_{false};
  std::mutex mutex_;
  std::condition_variable progress_;
  std::uint64_t flush_requests_ = 0, flushes_done_ = 0;
  bool flush_succeeded_ = true;
  bool stopping_ = false;
  bool stopped_cleanly_ = false;
  bool ended_ = false;  // the thread has nothing left to do
  bool left_behind_ = false;
  std::string end_json_;
  std::thread thread_;
};

}  // namespace alloctrace
