// Thread that reads lines of source files. A network file system may hang for minutes: on the writer thread such a read
// would let the spool fill, and events would be lost. Here only the lines are missing.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../base/varint.h"

namespace alloctrace {

// Maximum bytes of a source line; longer lines are truncated.
constexpr std::size_t kMaxSourceLineBytes = 512;

struct SourceLine {
  std::uint32_t filename_id = 0;  // string id in the trace
  std::string filename;
  std::int32_t line = 0;
};

class SourceReader {
 public:
  // Maximum wait for a file system that hangs: the delay that it adds to the end of the program.
  static constexpr std::chrono::milliseconds kTimeout{2000};

  explicit SourceReader(std::string working_directory);
  // Detach the thread if it hangs in a file: it ends when the file system answers.
  ~SourceReader();
  SourceReader(const SourceReader&) = delete;
  SourceReader& operator=(const SourceReader&) = delete;

  // Queue lines to be read. While a file hangs, the queue may reach its maximum: further lines are dropped.
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

}  // namespace alloctrace
