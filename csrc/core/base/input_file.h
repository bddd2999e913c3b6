// A file that is read at given offsets. Not mapped: if another program cuts the file short, that must be an error, not
// SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "closed_in_child.h"

namespace alloctrace {

class InputFile {
 public:
  // is_open() is false when there is no such file, and problem() says why.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  bool is_open() const { return file_ >= 0; }
  std::string problem() const;
  // As of opening, or of the last refresh_size().
  std::uint64_t size() const { return size_; }
  void refresh_size();
  // Opens the file that has its name now, if that is another one. Whether it was.
  bool reopen_if_replaced(const std::string& path);
  // What comes behind is as if it were not there.
  void limit_size(std::uint64_t size) { size_ = size < size_ ? size : size_; }
  // Reads all `size` bytes, or returns false.
  bool read(void* out, std::size_t size, std::uint64_t offset) const;
  // Reads up to `size` bytes from the beginning, also of a file without a size. Returns how many, or -1.
  std::ptrdiff_t read_some(void* out, std::size_t size) const;

 private:
  int file_ = -1;
  ClosedInChild in_child_;
  int error_ = 0;  // of errno
  std::uint64_t size_ = 0;
};

}  // namespace alloctrace
