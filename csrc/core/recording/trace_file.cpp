#include "trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "../base/crc32.h"

namespace alloctrace {

void TraceFile::refuse_existing(const std::string& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) == 0) {
    throw TraceFileError(path + " exists already: give another path, or overwrite=True");
  }
}

TraceFile::TraceFile(const std::string& path, bool overwrite, const std::uint8_t (&session_id)[16])
    : path_(path), written_path_(path), previous_end_(ClockAnchor::now()) {
  // Replaced rather than emptied: another process may still be reading or writing the old one. Only a
  // regular file or a link is replaced: a user who names /dev/null by mistake must keep it.
  struct stat status{};
  const bool exists = lstat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
    throw TraceFileError(path + " is not a file that could be replaced: give another path");
  }
  if (exists && !overwrite) refuse_existing(path);
  if (exists) {
    written_path_ += ".unfinished";
    unlink(written_path_.c_str());  // of a process that was killed while it started
  }
  file_ = open(written_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file_ < 0) throw TraceFileError("cannot create the trace " + path + ": " + std::strerror(errno));
  FileHeader header{};
  std::memcpy(header.magic, kFileMagic, sizeof kFileMagic);
  header.format_version = kFormatVersion;
  std::memcpy(header.session_id, session_id, sizeof session_id);
  header.header_crc = crc32(&header, sizeof header);
  if (!write_at(&header, sizeof header, 0)) {
    const int error = errno;
    close(file_);
    remove();
    throw TraceFileError("cannot write the trace " + path + ": " + std::strerror(error));
  }
  size_ = sizeof header;
}

TraceFile::~TraceFile() { close(file_); }

void TraceFile::publish() {
  if (written_path_ == path_) return;
  if (rename(written_path_.c_str(), path_.c_str()) != 0) {
    throw TraceFileError("cannot replace the trace " + path_ + ": " + std::strerror(errno));
  }
  written_path_ = path_;
}

void TraceFile::remove() noexcept { unlink(written_path_.c_str()); }

void TraceFile::close_in_child() { close(file_); }

bool TraceFile::append(BlockHeader header, const Bytes& payload) {
  return append(header, std::string_view(reinterpret_cast<const char*>(payload.data()), payload.size()));
}

bool TraceFile::append(BlockHeader header, std::string_view payload) {
  header.magic = kBlockMagic;
  header.payload_bytes = payload.size();
  header.payload_crc = crc32(payload.data(), payload.size());
  header.begin = previous_end_;
  const std::size_t unchecked = offsetof(BlockHeader, header_crc) + sizeof header.header_crc;
  header.header_crc = crc32(reinterpret_cast<const std::uint8_t*>(&header) + unchecked, sizeof header - unchecked);
  if (!write_at(&header, sizeof header, size_) || !write_at(payload.data(), payload.size(), size_ + sizeof header)) {
    // The part that was written is cut off: a torn block in the middle would read as damage.
    const int error = errno;
    if (ftruncate(file_, static_cast<off_t>(size_)) != 0) errno = error;
    return false;
  }
  size_ += sizeof header + payload.size();
  previous_end_ = header.end;
  return true;
}

bool TraceFile::write_at(const void* data, std::size_t size, std::uint64_t offset) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = pwrite(file_, at, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    offset += static_cast<std::uint64_t>(written);
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace alloctrace
