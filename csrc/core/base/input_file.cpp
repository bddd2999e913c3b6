#include "input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace alloctrace {

InputFile::InputFile(const std::string& path) {
  // Check before opening: a trace may name any path as its spool, and opening a device may have side effects.
  struct stat status{};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    error_ = S_ISDIR(status.st_mode) ? EISDIR : ESPIPE;
    return;
  }
  // O_NONBLOCK: opening a named pipe would block until it has a writer.
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

std::string InputFile::error_text() const {
  return error_ == ESPIPE ? "it is a pipe or a device, not a file" : std::strerror(error_);
}

InputFile::~InputFile() {
  if (file_ >= 0) close(file_);
}

void InputFile::refresh_size() {
  struct stat status{};
  if (fstat(file_, &status) == 0) size_ = static_cast<std::uint64_t>(status.st_size);
}

bool InputFile::is_replaced(const std::string& path) const {
  struct stat current{}, opened{};
  return file_ >= 0 && stat(path.c_str(), &current) == 0 && fstat(file_, &opened) == 0 &&
         (current.st_dev != opened.st_dev || current.st_ino != opened.st_ino);
}

bool InputFile::reopen_if_replaced(const std::string& path) {
  if (!is_replaced(path)) return false;
  InputFile replacement(path);
  if (!replacement.is_open()) return false;
  std::swap(file_, replacement.file_);
  std::swap(in_child_, replacement.in_child_);
  size_ = replacement.size_;
  return true;
}

std::ptrdiff_t InputFile::read_some(void* out, std::size_t size) const { return pread(file_, out, size, 0); }

bool InputFile::read(void* out, std::size_t size, std::uint64_t offset) const {
  auto* at = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t count = pread(file_, at, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    offset += static_cast<std::uint64_t>(count);
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace alloctrace
