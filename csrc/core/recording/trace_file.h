// The trace file from the writer's side: whole blocks are appended, or nothing is.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "../base/varint.h"
#include "../format/format.h"

namespace alloctrace {

class TraceFileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class TraceFile {
 public:
  // Creates the file and writes its header. With `overwrite` an existing file stays as it is until publish().
  // Throws TraceFileError, whose text is a sentence; a file that it created is then removed.
  TraceFile(const std::string& path, bool overwrite, const std::uint8_t (&session_id)[16]);
  ~TraceFile();
  // Puts the file in place of the existing one, once nothing can fail any more: a good trace is never given up for a
  // recording that cannot begin. Throws TraceFileError.
  void publish();
  // Deletes the file; an existing one that it was to replace stays.
  void remove() noexcept;
  // Throws TraceFileError when the file exists.
  static void refuse_existing(const std::string& path);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Appends one block; all header fields except type, first_sequence, event_count, end and counters are filled in here.
  // False when it could not be written whole: the file then still ends where it did (the next block overwrites the torn
  // part).
  bool append(BlockHeader header, const Bytes& payload);
  bool append(BlockHeader header, std::string_view payload);

  // A forked child must not keep the file open: its disk space would stay taken after it is deleted.
  void close_in_child();

  // Where the next block begins in time: its events' times are relative to this.
  const ClockAnchor& next_begin() const { return previous_end_; }
  std::uint64_t bytes() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  bool write_at(const void* data, std::size_t size, std::uint64_t offset);
  std::string path_;
  std::string written_path_;  // another than path_ until publish()
  int file_ = -1;
  std::uint64_t size_ = 0;
  ClockAnchor previous_end_;
};

}  // namespace alloctrace
