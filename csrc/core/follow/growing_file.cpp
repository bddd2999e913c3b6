#include "growing_file.h"

#include <sys/stat.h>

#include <cstring>

#include "../reading/read_errors.h"

namespace alloctrace {

GrowingFile::GrowingFile(const std::string& path) : path_(path), file_(path) {
  if (!file_.is_open()) throw OpenError("cannot open " + path + ": " + file_.error_text());
  restart();
}

void GrowingFile::restart() {
  FileHeader header{};
  if (!file_.read(&header, sizeof header, 0) || !is_valid(header)) {
    throw not_a_trace(path_);
  }
  check_version(header, path_);
  const bool is_first = offset_ == 0;
  if (!is_first && std::memcmp(header.session_id, header_.session_id, sizeof header.session_id) != 0) {
    throw OpenError(path_ + " is of another recording now: begin again");
  }
  header_ = header;
  scanner_ = BlockScanner(file_);
  offset_ = sizeof header_;
  needs_restart_ = false;
}

void GrowingFile::refresh() {
  struct stat status{};
  if (stat(path_.c_str(), &status) != 0) throw OpenError(path_ + " is gone");
  if (file_.reopen_if_replaced(path_)) needs_restart_ = true;
  if (file_.is_replaced(path_)) throw OpenError("cannot open " + path_ + " again, which another file has replaced");
  file_.refresh_size();
  scanner_.renew_budget();
  // Until a restart succeeds, each call tries again: the offset is one of the replaced file.
  needs_restart_ |= file_.size() < offset_;
  if (needs_restart_) restart();
}

bool GrowingFile::next(FileBlock& block) {
  while (next_complete(block)) {
    if (scanner_.accept(block.header)) return true;
    ++corrupt_blocks_;
  }
  return false;
}

bool GrowingFile::next_complete(FileBlock& block) {
  if (scanner_.read(offset_, block) == FileBlockState::kComplete) {
    offset_ = block.end();
    return true;
  }
  // Most likely the block is still being written. It is corrupt if a complete block follows.
  for (std::uint64_t offset = offset_; !scanner_.has_wasted_too_much();) {
    offset = scanner_.find_header(offset + 1, file_.size());
    if (offset == file_.size()) return false;
    if (scanner_.read(offset, block) == FileBlockState::kComplete) {
      ++corrupt_blocks_;
      offset_ = block.end();
      return true;
    }
  }
  return false;
}

}  // namespace alloctrace
