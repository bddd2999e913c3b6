// One recording: from the first event to the closed trace file. No torch, no Python: whoever observes an allocator
// fills an Event and pushes it here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "../format/definitions.h"
#include "../format/trace_file.h"
#include "file_bound.h"
#include "id_table.h"
#include "source_lines.h"
#include "spool.h"
#include "stack_table.h"
#include "termination_signal.h"
#include "writer.h"

namespace alloctrace {

struct RecorderOptions {
  std::string path;
  bool overwrite = false;
  SpoolOptions spool;
  SourcePolicy sources;
  StackLimits stack_limits;
  std::string header_json;
  std::uint8_t session_id[16] = {};
  std::function<std::unique_ptr<FileBound>()> make_bound;  // empty: the trace may have any size
};

class Recorder {
 public:
  // A server may make one for each request, for weeks; what names them stays in memory.
  static constexpr std::uint32_t kMostThreads = 1 << 17;

  // Creates spool and trace file and starts the writer. Throws SpoolError or TraceFileError; nothing is left behind
  // then.
  explicit Recorder(const RecorderOptions& options);
  // Stops the writer if stop() was not called.
  ~Recorder();

  bool push(const Event& event, std::uint64_t* sequence = nullptr) noexcept { return spool_->push(event, sequence); }
  // See Spool::complete_free.
  bool complete_free(std::uint64_t position) noexcept { return spool_->complete_free(position); }
  Spool& spool() { return *spool_; }
  StackTable& stacks() { return *stacks_; }
  SourceLines& sources() { return *sources_; }

  // Ids for the fields of events; the same for equal values. 0 when the definition could not be stored.
  [[gnu::cold, gnu::noinline]] std::uint32_t location(const Location& location);
  [[gnu::cold, gnu::noinline]] std::uint16_t node_type(const NodeType& type);
  // Every call is a new thread. 0 when it could not be stored, or there have been kMostThreads.
  std::uint32_t add_thread(const ThreadRecord& thread);
  void name_thread(std::uint32_t thread, const std::string& python_name);
  void add_device(const DeviceRecord& device);
  // A block that a library keeps for itself. event: as in DefinitionType::kLibraryBlock.
  void add_library_block(std::uint64_t event, std::uint64_t address, const char* name) noexcept;

  // What the program's objects hold, as a look found it. False: there was no room.
  bool add_holder(const HolderRecord& holder);
  // The number of the next event.
  std::uint64_t next_event() const { return spool_->header().head.load(std::memory_order_acquire); }

  // Waits until every event before now is in the file, with its source lines unless a file hangs. False when the file
  // cannot be written.
  bool flush(const Writer::GivesUp& gives_up = {});
  // Text of user lines that only the interpreter knows; goes to the file with the next definitions.
  void add_source_line(const std::string& filename, std::int32_t line, const std::string& text);

  // Before the last flush(), which a compaction would hold up.
  void announce_stop() { writer_->announce_stop(); }
  // Ends the recording when no hook runs any more. True: all is in the trace and the spool is gone. False: the trace
  // could not be written to its end; the spool stays and the reader reads both.
  // Where the caller gives up, the writer is left behind: it goes on when the file answers, and the recorder must stay.
  bool stop(const std::string& end_json, const Writer::GivesUp& gives_up = {});
  bool is_left_behind() const { return writer_->is_left_behind(); }
  bool spool_is_gone() const { return spool_->is_gone(); }

  // The last step of a start, and the way back from one that failed: stops, and removes the spool and the file.
  void publish();
  void discard();

  const std::string& path() const { return file_->path(); }

 private:
  WakeSignal wake_;
  std::unique_ptr<Spool> spool_;
  std::unique_ptr<TraceFile> file_;
  std::unique_ptr<StackTable> stacks_;
  std::unique_ptr<SourceLines> sources_;
  std::unique_ptr<FileBound> bound_;
  std::unique_ptr<Writer> writer_;
  std::optional<TerminationSignal> termination_;
  bool overwrite_;
  bool stopped_ = false;

  std::mutex mutex_;  // of the tables below; a leaf except for the definition log's
  IdTable<Location, LocationHash> locations_;
  IdTable<std::string, TextHash> node_types_;
  std::uint32_t threads_ = 0;
};

}  // namespace alloctrace
