// Texts of the user's source lines in stacks. They are read while the program runs, so that a report can quote them on
// another machine and after the files have changed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../base/varint.h"
#include "../format/definitions.h"

namespace alloctrace {

// Maximum bytes of a source line; longer lines are truncated.
constexpr std::size_t kMaxSourceLineBytes = 512;

struct SourceLine {
  std::uint32_t filename_id = 0;  // string id in the trace
  std::string filename;
  std::int32_t line = 0;
};

// Thread that reads lines of source files. A network file system may hang for minutes: on the writer thread such a read
// would let the spool fill, and events would be lost. Here only the lines are missing.
//
// Contract:
// - Only the writer calls request(); the destructor runs after the writer has ended. The other functions may be called
//   from any thread.
// - The mutex is not held while a file is read, so only wait() and the destructor wait for a file, up to a timeout.
// - Lines are read in the order of the queue. A line's record, or its entry among the missing, is stored before the
//   line leaves the queue: after a wait() that did not time out, drain_records() appends the records of all lines.
// - A full queue discards new lines, never queued ones. Discarded lines, and those for which there was no memory or no
//   thread, have neither a record nor an entry.
class SourceReader {
 public:
  // Maximum wait for a file system that hangs: the delay that it adds to the end of the program.
  static constexpr std::chrono::milliseconds kTimeout{2000};

  explicit SourceReader(std::string working_directory);
  // Detach the thread if it hangs in a file: it ends when the file system answers.
  ~SourceReader();
  SourceReader(const SourceReader&) = delete;
  SourceReader& operator=(const SourceReader&) = delete;

  // Queue lines to be read. Only a file that hangs lets the queue reach its maximum.
  void request(std::vector<SourceLine> lines);

  // Wait until all lines are read, for at most `timeout`. After a timeout, return at once until a line is read.
  void wait(std::chrono::milliseconds timeout);

  // Append a source_line record for each line read since the last call.
  void drain_records(Bytes& out);
  // Return the requested lines that were in no file since the last call.
  std::vector<SourceLine> drain_missing();

 private:
  struct Shared;
  static void run(Shared& shared);

  std::shared_ptr<Shared> shared_;  // shared with the thread, which may outlive this object
  std::thread thread_;              // started by the first request
};

// Selection of user code: all files under no library prefix (torch, installed packages, the standard library).
struct SourcePolicy {
  bool enabled = true;
  std::vector<std::string> library_prefixes;
  std::string working_directory;  // base of relative file names
};

// Contract:
// - Only the writer calls add_frame() and request_lines(). The other functions may be called from any thread.
// - A line is queued once, in the order of its first frame; a line that was not read is not queued again.
// - Each record and each unread line is drained once. A caller that cannot write the drained records must keep them.
// - The mutex is held before the reader's, never after. No file is read while either is held.
class SourceLines {
 public:
  explicit SourceLines(SourcePolicy policy);

  // Queue the source line of a new frame, if it is user code and not queued before. `names` has the frame's code.
  // Call request_lines() afterwards. Neither waits for a file.
  void add_frame(const Definitions& names, const FrameRecord& frame);
  void request_lines();

  // Queue a line that no stack may contain, for the writer's next request_lines(). Ignored if no stack contains the
  // file.
  void add_other_line(const std::string& filename, std::int32_t line);

  // Wait until all requested lines are read, for at most `timeout` in case a file hangs.
  void wait(std::chrono::milliseconds timeout = SourceReader::kTimeout) { reader_.wait(timeout); }

  // Append a source_line record for each line read or added since the last call.
  void drain_records(Bytes& out);

  // Return the user lines since the last call that are in no file (a notebook cell, code from a string). The
  // interpreter may have their text.
  std::vector<std::pair<std::string, std::int32_t>> drain_unread();

  // Add the text of a line that is in no file. Ignored if no stack contains the file.
  void add_line(const std::string& filename, std::int32_t line, const std::string& text);

 private:
  bool is_user_file(const std::string& filename) const;
  void queue(std::uint32_t filename_id, const std::string& filename, std::int32_t line);

  const SourcePolicy policy_;
  SourceReader reader_;
  // Used by the writer thread only.
  std::unordered_set<std::uint64_t> seen_instructions_;  // code << 32 | instruction: many frames share one
  std::vector<SourceLine> queued_;
  std::mutex mutex_;  // guards all below
  std::set<std::pair<std::uint32_t, std::int32_t>> seen_lines_;
  std::unordered_map<std::string, std::uint32_t> filename_ids_;
  std::vector<std::pair<std::string, std::int32_t>> other_lines_, unread_;
  Bytes records_;
};

}  // namespace alloctrace
