// The user's source lines that occur in stacks, read while the program runs, so that a verdict can quote them on a
// machine that does not have the files, or after they have changed.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../format/definitions.h"
#include "source_reader.h"

namespace alloctrace {

// Which files hold user code: those under no library prefix (not torch, not installed packages, not the standard
// library).
struct SourcePolicy {
  bool enabled = true;
  std::vector<std::string> library_prefixes;
  std::string working_directory;  // of relative file names
};

// Thread-safe.
class SourceLines {
 public:
  explicit SourceLines(SourcePolicy policy);

  // A new frame, whose code is in `names`: has its line read if it is a user's, and was not before. The writer calls
  // this, and then request(): neither waits for a file.
  void find(const Definitions& names, const FrameRecord& frame);
  void request() { reader_.request(std::exchange(wanted_, {})); }

  // Waits until all lines found so far are read, or until it is clear that a file hangs.
  void wait(std::chrono::milliseconds patience = SourceReader::kPatience) { reader_.wait(patience); }

  // Appends a source_line record for each line whose text became known since the last call.
  void take_records(Bytes& out);

  // User lines whose text no file has (a notebook cell, code from a string): the interpreter may still know it.
  std::vector<std::pair<std::string, std::int32_t>> take_unread();

  // Text of a line from elsewhere; ignored when the trace does not know the file.
  void put_line(const std::string& filename, std::int32_t line, const std::string& text);

 private:
  bool is_user_file(const std::string& filename) const;

  const SourcePolicy policy_;
  SourceReader reader_;
  // Of the writer.
  std::unordered_set<std::uint64_t> calls_seen_;  // code objects and instructions: many frames share one
  std::vector<SourceLine> wanted_;
  std::mutex mutex_;  // of all below
  std::set<std::pair<std::uint32_t, std::int32_t>> lines_seen_;
  std::unordered_map<std::string, std::uint32_t> filename_ids_;
  std::vector<std::pair<std::string, std::int32_t>> unread_;
  Bytes records_;
};

}  // namespace alloctrace
