// A trace file that is still written: its blocks, each once, as they come.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "../base/input_file.h"
#include "../base/varint.h"
#include "../format/format.h"

namespace alloctrace {

class GrowingFile {
 public:
  // Throws OpenError or FormatError (trace_reader.h).
  explicit GrowingFile(const std::string& path);
  const std::string& path() const { return path_; }

  // Looks how far the file has come since, and whether another has taken its place: then all of its blocks come, those
  // of events that were there before too. Throws OpenError where it is gone or belongs to another recording.
  void refresh();
  // The next whole block; false where none is there yet. What is damaged is stepped over, and counted, once whole
  // blocks follow it; so is a fold that is not at the file's beginning.
  bool next(BlockHeader& header, Bytes& payload);
  bool at_end() const { return offset_ >= file_->size(); }
  std::uint64_t size() const { return file_->size(); }
  std::uint64_t damaged() const { return damaged_; }
  const std::uint8_t (&session_id() const)[16] { return file_header_.session_id; }

 private:
  void open_at(const std::string& path);
  bool next_whole(BlockHeader& header, Bytes& payload);
  bool read_block(std::uint64_t offset, BlockHeader& header, Bytes& payload) const;

  std::string path_;
  std::unique_ptr<InputFile> file_;
  FileHeader file_header_{};
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::uint64_t offset_ = sizeof(FileHeader);
  std::uint64_t damaged_ = 0;
  bool may_have_fold_ = true;  // after what was read
};

}  // namespace alloctrace
