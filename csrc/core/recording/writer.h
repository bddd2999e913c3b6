// The writer thread: drains the spool into the trace file. It never touches Python and runs with all signals blocked,
// so that the program's signal handlers never run on it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "../format/event_codec.h"
#include "source_lines.h"
#include "spool.h"
#include "trace_file.h"
#include "wake_signal.h"

namespace alloctrace {

class Writer {
 public:
  // Writes the header block at once (throws TraceFileError when that fails), then starts the thread.
  Writer(TraceFile& file, Spool& spool, WakeSignal& wake, SourceLines& sources, const std::string& header_json);
  ~Writer();

  // Waits until every event before now is in the file. False when the file cannot be written.
  bool flush();

  // Drains all, writes the dictionary and `end_json`, ends the thread. No hook may run any more. False when something
  // could not be written: the spool then still has it.
  bool stop(const std::string& end_json);

 private:
  void run();
  bool drain(bool everything);
  bool write_definitions();
  bool write_events(std::uint64_t end);
  bool repeat_names();
  bool write_end(const std::string& end_json);
  void end_by_signal();
  BlockHeader block(BlockType type) const;
  bool note_outcome(bool written);

  TraceFile& file_;
  Spool& spool_;
  WakeSignal& wake_;
  SourceLines& sources_;
  EventEncoder encoder_;
  Bytes pending_, source_lines_;  // definitions on their way to the file; those among them that are not in the spool
  std::string header_json_;
  Bytes dictionary_;  // all definitions so far
  std::uint64_t dictionary_written_at_ = 0;
  std::uint64_t last_block_ns_ = 0;

  std::mutex mutex_;
  std::condition_variable progress_;
  std::uint64_t flush_requests_ = 0, flushes_done_ = 0;
  bool flush_succeeded_ = true;
  bool stopping_ = false;
  bool stopped_cleanly_ = false;
  std::string end_json_;
  std::thread thread_;
};

}  // namespace alloctrace
