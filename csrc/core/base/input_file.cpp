#include "input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace alloctrace {

InputFile::InputFile(const std::string& path) {
  // Not even opened unless it is a file: a trace may name any path as its spool, and opening a device may act on it.
  struct stat status{};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    error_ = S_ISDIR(status.st_mode) ? EISDIR : ESPIPE;
    return;
  }
  // O_NONBLOCK: opening a named pipe would wait for somebody to write into it.
  file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0 || fstat(file_, &status) != 0) {
    error_ = errno;
    return;
  }
  if (!S_ISREG(status.st_mode)) {
    error_ = S_ISDIR(status.st_mode) ? EISDIR : ESPIPE;
    close(file_);
    file_ = -1;
    return;
  }
  in_child_ = ClosedInChild(file_);
  size_ = static_cast<std::uint64_t>(status.st_size);
}

std::string InputFile::problem() const {
  return error_ == ESPIPE ? "it is a pipe or a device, not a file" : std::strerror(error_);
}

InputFile::~InputFile() {
  if (file_ >= 0) close(file_);
}

void InputFile::refresh_size() {
  struct stat status{};
  if (fstat(file_, &status) == 0) size_ = static_cast<std::uint64_t>(status.st_size);
}

bool InputFile::reopen_if_replaced(const std::string& path) {
  struct stat named{}, known{};
  if (file_ < 0 || stat(path.c_str(), &named) != 0 || fstat(file_, &known) != 0) return false;
  if (named.st_dev == known.st_dev && named.st_ino == known.st_ino) return false;
  InputFile other(path);
  if (!other.is_open()) return false;
  std::swap(file_, other.file_);
  std::swap(in_child_, other.in_child_);
  size_ = other.size_;
  return true;
}

std::ptrdiff_t InputFile::read_some(void* out, std::size_t size) const { return pread(file_, out, size, 0); }

bool InputFile::read(void* out, std::size_t size, std::uint64_t offset) const {
  auto* at = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = pread(file_, at, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace alloctrace
