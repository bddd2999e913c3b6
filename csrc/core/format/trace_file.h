// The trace file from the writer's side.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "../base/unnamed_file.h"
#include "block_file.h"

namespace alloctrace {

class TraceFileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class TraceFile : public BlockFile {
 public:
  // Creates the file, which has no name until publish(), and writes its header. An existing file is refused, or, with
  // `overwrite`, stays as it is until publish(). Throws TraceFileError, whose text is a sentence; nothing is left then.
  // begin: when the first block begins.
  TraceFile(const std::string& path, bool overwrite, const std::uint8_t (&session_id)[16],
            const ClockAnchor& begin = ClockAnchor::now(), std::uint32_t version = kFormatVersion);
  // Gives the file its name, once nothing can fail any more: a good trace is never given up for a recording that cannot
  // begin. Throws TraceFileError.
  void publish();
  bool is_published() const { return name_.is_published(); }
  // Continues in another file, which is at `there` and takes the name of this one. False where that cannot be renamed:
  // nothing is changed then.
  bool become(TraceFile& other, const std::string& there);
  // Returns when the file is on the disk, as far as that can be known.
  void sync();
  // Deletes the file; an existing one that it was to replace stays.
  void remove() noexcept;
  // Throws TraceFileError when the file exists.
  static void refuse_existing(const std::string& path);

  const std::string& path() const { return name_.path(); }

 private:
  UnnamedFile name_;
  bool overwrite_;
};

}  // namespace alloctrace
