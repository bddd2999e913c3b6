// A trace that is written to: whole blocks are appended, or nothing is.
#pragma once

#include <cstdint>
#include <string_view>

#include "../base/closed_in_child.h"
#include "../base/varint.h"
#include "format.h"

namespace alloctrace {

class BlockFile {
 public:
  // Closes the file.
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  // Appends one block; all header fields except type, first_sequence, event_count, end and counters are filled in here.
  // False when it could not be written whole: the file then still ends where it did (the next block overwrites the torn
  // part).
  bool append(BlockHeader header, const Bytes& payload);
  bool append(BlockHeader header, std::string_view payload);

  // The same, for a block whose events have their times from another one's anchors.
  bool append_from(const ClockAnchor& begin, const BlockHeader& header, std::string_view payload) {
    next_begin_ = begin;
    return append(header, payload);
  }

  // Bytes of whole blocks, or any others.
  bool append_raw(std::string_view bytes) {
    if (!write_at(bytes.data(), bytes.size(), size_)) return false;
    size_ += bytes.size();
    return true;
  }

  // Where the next block begins in time: its events' times are relative to this.
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

}  // namespace alloctrace
