// Reader of a trace file that is still written: returns each block once, when it is complete.
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

  // Update the file's size. If another file has replaced it, restart at the new file's first block: blocks of known
  // events are then returned again. Throws OpenError if the file is missing or belongs to another recording.
  void refresh();
  // Read the next complete block; returns false if there is none yet. Skips and counts corrupt blocks once a complete
  // one follows, and a compacted part that is not at the file's beginning.
  bool next(BlockHeader& header, Bytes& payload);
  bool at_end() const { return offset_ >= file_->size(); }
  std::uint64_t size() const { return file_->size(); }
  std::uint64_t corrupt_blocks() const { return corrupt_blocks_; }
  const std::uint8_t (&session_id() const)[16] { return file_header_.session_id; }

 private:
  void open_at(const std::string& path);
  bool next_complete(BlockHeader& header, Bytes& payload);
  bool read_block(std::uint64_t offset, BlockHeader& header, Bytes& payload) const;

  std::string path_;
  std::unique_ptr<InputFile> file_;
  FileHeader file_header_{};
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::uint64_t offset_ = sizeof(FileHeader);
  std::uint64_t corrupt_blocks_ = 0;
  bool may_be_compacted_ = true;  // a compacted part may still follow
};

}  // namespace alloctrace
