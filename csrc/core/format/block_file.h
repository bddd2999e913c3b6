// Trace file under construction: a block is appended completely or not at all.
#pragma once

#include <cstdint>
#include <string_view>

#include "../base/closed_in_child.h"
#include "../base/varint.h"
#include "format.h"

namespace alloctrace {

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

}  // namespace alloctrace
