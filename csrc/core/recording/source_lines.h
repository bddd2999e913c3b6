// The user's source lines that occur in stacks, read while the program runs, so that a verdict can quote them on a
// machine that does not have the files, or after they have changed.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../format/definitions.h"

namespace alloctrace {

// Which files hold user code: those under no library prefix (DESIGN: not torch, not installed packages, not the
// standard library).
struct SourcePolicy {
  bool enabled = true;
  std::vector<std::string> library_prefixes;
  std::string working_directory;  // of relative file names
};

class SourceLines {
 public:
  explicit SourceLines(SourcePolicy policy) : policy_(std::move(policy)) {}

  // Looks through definition records that go to the trace and appends a source_line record for each new user line.
  void collect(const std::uint8_t* records, std::size_t size, Bytes& out);

  // User lines whose text no file has (a notebook cell, code from a string): the interpreter may still know it.
  std::vector<std::pair<std::string, std::int32_t>> take_unread();

  // The record for one line whose text came from elsewhere; false when the trace does not know the file.
  bool put_line(const std::string& filename, std::int32_t line, const std::string& text, Bytes& out);

 private:
  using Lines = std::vector<std::string>;
  const Lines& file(const std::string& filename);
  bool is_user_file(const std::string& filename) const;

  SourcePolicy policy_;
  std::mutex mutex_;
  Definitions definitions_;
  std::size_t frames_seen_ = 1;
  std::set<std::pair<std::uint32_t, std::int32_t>> lines_seen_;
  std::unordered_map<std::string, Lines> files_;
  std::unordered_map<std::string, std::uint32_t> filename_ids_;
  std::vector<std::pair<std::string, std::int32_t>> unread_;
};

}  // namespace alloctrace
