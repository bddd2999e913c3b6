// Trace file of the writer.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "../base/closed_in_child.h"
#include "../base/unnamed_file.h"
#include "../base/varint.h"
#include "format.h"

namespace alloctrace {

// Trace file under construction: a block is appended completely or not at all.
class BlockFile {
 public:
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  // Append one block and return whether it was written. Sets all header fields but type, first_sequence, event_count,
  // end and counters. On failure the end of the file stays the same, and the next block overwrites the partial one.
  bool append(BlockHeader header, const Bytes& payload);
  bool append(BlockHeader header, std::string_view payload);

  // Append a block whose event times are relative to `begin`.
  bool append_with_begin(const ClockAnchor& begin, const BlockHeader& header, std::string_view payload) {
    next_begin_ = begin;
    return append(header, payload);
  }

  // Append bytes as they are. Return whether they were written.
  bool append_raw(std::string_view bytes) {
    if (!write_at(bytes.data(), bytes.size(), size_)) return false;
    size_ += bytes.size();
    return true;
  }

  // Return the time at which the next block begins; its event times are relative to this anchor.
  const ClockAnchor& next_begin() const { return next_begin_; }
  std::uint64_t bytes() const { return size_; }

 protected:
  explicit BlockFile(const ClockAnchor& begin) : next_begin_(begin) {}
  bool write_at(const void* data, std::size_t size, std::uint64_t offset);

  int file_ = -1;
  ClosedInChild file_in_child_;
  std::uint64_t size_ = 0;
  ClockAnchor next_begin_;
};

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
