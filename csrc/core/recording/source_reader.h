// Reads lines of source files on a thread of its own. A network home may hang for minutes: that may cost the lines of
// its files, but never the writer's time, since events are lost when nobody drains the spool.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../base/varint.h"

namespace alloctrace {

// Only the beginning of a longer line is kept.
constexpr std::size_t kMaxSourceLineBytes = 512;

struct SourceLine {
  std::uint32_t filename_id = 0;  // string id in the trace
  std::string filename;
  std::int32_t line = 0;
};

class SourceReader {
 public:
  // An ordinary file system has answered long before; the end of the program is not held up for longer by one that
  // hangs.
  static constexpr std::chrono::milliseconds kPatience{2000};

  // Relative file names are those of `working_directory`.
  explicit SourceReader(std::string working_directory);
  // Leaves the thread behind when it hangs in a file; it then ends when the file answers.
  ~SourceReader();
  SourceReader(const SourceReader&) = delete;
  SourceReader& operator=(const SourceReader&) = delete;

  // To be read soon. Lines that the queue has no room for, because a file hangs, are dropped.
  void request(std::vector<SourceLine> lines);

  // Waits until all requested lines are read, but not long for a file that hangs, and only once.
  void wait(std::chrono::milliseconds patience);

  // Appends a source_line record for each line that was read since the last call.
  void take_records(Bytes& out);
  // The lines, since the last call, that no file has.
  std::vector<SourceLine> take_missing();

 private:
  struct Shared;
  static void run(Shared& shared);

  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this
  std::thread thread_;              // started by the first request
};

}  // namespace alloctrace
