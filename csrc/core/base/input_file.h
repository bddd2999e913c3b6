// File read at explicit offsets. Not mapped: a read of a truncated file must fail instead of raising SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "closed_in_child.h"

namespace alloctrace {

class InputFile {
 public:
  // Open `path`. On failure is_open() returns false and error_text() the reason.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  bool is_open() const { return file_ >= 0; }
  std::string error_text() const;
  // Return the size at opening or at the last refresh_size().
  std::uint64_t size() const { return size_; }
  void refresh_size();
  // Return whether `path` names a different file now.
  bool is_replaced(const std::string& path) const;
  // Reopen `path` if it names a different file now. Return whether it did.
  bool reopen_if_replaced(const std::string& path);
  // Ignore everything past `size`.
  void limit_size(std::uint64_t size) { size_ = size < size_ ? size : size_; }
  // Read exactly `size` bytes; return false on failure.
  bool read(void* out, std::size_t size, std::uint64_t offset) const;
  // Read up to `size` bytes from the start, also of a file in /proc, whose size is 0. Return the count, or -1.
  std::ptrdiff_t read_some(void* out, std::size_t size) const;

 private:
  int file_ = -1;
  ClosedInChild in_child_;
  int error_ = 0;  // errno of the failed open
  std::uint64_t size_ = 0;
};

}  // namespace alloctrace
