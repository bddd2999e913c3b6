// One recording, from the first event to the closed trace file. Depends on neither torch nor Python.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "../format/definitions.h"
#include "../format/trace_file.h"
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
  std::function<std::unique_ptr<FileBound>()> make_bound;  // empty: no size limit
};

class Recorder {
 public:
  // Maximum number of threads: their definitions stay in memory, and a server may start a thread for each request.
  static constexpr std::uint32_t kMaxThreads = 1 << 17;

  // Create spool and trace file, and start the writer. Throws SpoolError or TraceFileError, leaving no files behind.
  explicit Recorder(const RecorderOptions& options);
  ~Recorder();

  bool push(const Event& event, std::uint64_t* sequence = nullptr) noexcept { return spool_->push(event, sequence); }
  bool complete_free(std::uint64_t position) noexcept { return spool_->complete_free(position); }
  Spool& spool() { return *spool_; }
  StackTable& stacks() { return *stacks_; }
  SourceLines& sources() { return *sources_; }

  // Return the id of a location or node type, equal for equal values; 0 if its definition could not be stored.
  [[gnu::cold, gnu::noinline]] std::uint32_t location_id(const Location& location);
  [[gnu::cold, gnu::noinline]] std::uint16_t node_type_id(const NodeType& type);
  // Add a thread, a new one in each call, and return its id; 0 if it could not be stored or kMaxThreads is reached.
  std::uint32_t add_thread(const ThreadRecord& thread);
  void name_thread(std::uint32_t thread, const std::string& python_name);
  void add_device(const DeviceRecord& device);
  // Record that a library keeps a block for itself. event: as in DefinitionType::kLibraryBlock.
  void add_library_block(std::uint64_t event, std::uint64_t address, const char* name) noexcept;

  // Add a referrer path of an object scan. Returns false if the log has no room.
  bool add_holder(const HolderRecord& holder);
  void add_child(const ChildRecord& child);
  std::uint64_t next_event() const { return spool_->header().head.load(std::memory_order_acquire); }

  // Wait until every event so far is in the file, with its source lines unless a source file hangs. Returns false if
  // the trace cannot be written or should_give_up returned true.
  bool flush(const Writer::ShouldGiveUp& should_give_up = {});
  // Add the text of a user line that only the interpreter has; it is written with the next definitions.
  void add_source_line(const std::string& filename, std::int32_t line, const std::string& text);

  // Stop waiting for compactions. Call it before the last flush(), which a compaction would delay.
  void announce_stop() { writer_->announce_stop(); }
  // End the recording. No hook may run any more. Returns true if the trace is complete and the spool removed, else
  // false: the reader then reads both. If should_give_up returns true, the writer thread is abandoned; it still uses
  // the recorder, which must not be freed.
  bool stop(const std::string& end_json, const Writer::ShouldGiveUp& should_give_up = {});
  bool is_writer_abandoned() const { return writer_->is_abandoned(); }
  bool is_spool_truncated() const { return spool_->is_truncated(); }

  // Give spool and trace their names: the last step of a start.
  void publish();
  // Stop, and remove spool and trace, after a start that failed.
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

  std::mutex mutex_;  // guards the tables below; while it is held, only the definition log's is locked
  IdTable<Location, LocationHash> locations_;
  IdTable<std::string, TextHash> node_types_;
  std::uint32_t threads_ = 0;
};

}  // namespace alloctrace
