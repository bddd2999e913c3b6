// Trace file of the writer.
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
  // Create the file, without a name until publish(), and write its header. An existing file is an error; with
  // `overwrite` it stays until publish(). begin: of the first block. Throws TraceFileError and leaves no file then.
  TraceFile(const std::string& path, bool overwrite, const std::uint8_t (&session_id)[16],
            const ClockAnchor& begin = ClockAnchor::now(), std::uint32_t version = kFormatVersion);
  // Give the file its name, when nothing else can fail: an existing trace survives until then. Throws TraceFileError.
  void publish();
  bool is_published() const { return unnamed_file_.is_published(); }
  // Continue in `other`, renaming its file from `other_path` to this path. Return false, unchanged, if that fails.
  bool switch_to(TraceFile& other, const std::string& other_path);
  // Write the file to disk, as far as the system confirms.
  void sync();
  // Delete the file; an existing file that it was to replace stays.
  void remove() noexcept;
  // Throw TraceFileError if the file exists.
  static void refuse_existing(const std::string& path);

  const std::string& path() const { return unnamed_file_.path(); }

 private:
  UnnamedFile unnamed_file_;
  bool overwrite_;
};

}  // namespace alloctrace
