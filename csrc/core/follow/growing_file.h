// Reader of a trace file that is still written: returns each block once, when it is complete.
#pragma once

#include <cstdint>
#include <string>

#include "../base/input_file.h"
#include "../format/format.h"
#include "../reading/block_scanner.h"

namespace alloctrace {

class GrowingFile {
 public:
  // Throws OpenError or FormatError.
  explicit GrowingFile(const std::string& path);
  const std::string& path() const { return path_; }

  // Update the file's size. If another file has replaced it, restart at the new file's first block: blocks of known
  // events are then returned again. Throws OpenError if the file is missing or belongs to another recording.
  void refresh();
  // Read the next complete block; returns false if there is none yet. Skips and counts corrupt blocks once a complete
  // one follows, and a compacted part that is not at the file's beginning.
  bool next(FileBlock& block);
  bool at_end() const { return offset_ >= file_.size(); }
  std::uint64_t size() const { return file_.size(); }
  std::uint64_t corrupt_blocks() const { return corrupt_blocks_; }
  const std::uint8_t (&session_id() const)[16] { return header_.session_id; }

 private:
  void restart();
  bool next_complete(FileBlock& block);

  std::string path_;
  InputFile file_;
  BlockScanner scanner_{file_};
  FileHeader header_{};
  std::uint64_t offset_ = 0;  // of the next block
  bool needs_restart_ = true;
  std::uint64_t corrupt_blocks_ = 0;
};

}  // namespace alloctrace
