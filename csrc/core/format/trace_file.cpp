#include "trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "../base/crc32.h"

namespace alloctrace {

BlockFile::~BlockFile() {
  if (file_ >= 0) close(file_);
}

bool BlockFile::append(BlockHeader header, const Bytes& payload) {
  return append(header, std::string_view(reinterpret_cast<const char*>(payload.data()), payload.size()));
}

bool BlockFile::append(BlockHeader header, std::string_view payload) {
  header.magic = kBlockMagic;
  header.payload_bytes = payload.size();
  header.payload_crc = crc32(payload.data(), payload.size());
  header.begin = next_begin_;
  const std::size_t crc_begin = offsetof(BlockHeader, header_crc) + sizeof header.header_crc;
  header.header_crc = crc32(reinterpret_cast<const std::uint8_t*>(&header) + crc_begin, sizeof header - crc_begin);
  if (!write_at(&header, sizeof header, size_) || !write_at(payload.data(), payload.size(), size_ + sizeof header)) {
    // Remove the partial block: inside the file it would read as corruption.
    const int error = errno;
    [[maybe_unused]] const int result = ftruncate(file_, static_cast<off_t>(size_));
    errno = error;
    return false;
  }
  size_ += sizeof header + payload.size();
  next_begin_ = header.end;
  return true;
}

bool BlockFile::write_at(const void* data, std::size_t size, std::uint64_t offset) {
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

void TraceFile::refuse_existing(const std::string& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) == 0) {
    throw TraceFileError(path + " exists already: give another path, or overwrite=True");
  }
}

TraceFile::TraceFile(const std::string& path, bool overwrite, const std::uint8_t (&session_id)[16],
                     const ClockAnchor& begin, std::uint32_t version)
    : BlockFile(begin), unnamed_file_(path), overwrite_(overwrite) {
  // An existing file is replaced, not emptied: another process may be reading or writing the old one. Only a regular
  // file or a link is replaced: /dev/null, named by mistake, must survive.
  struct stat status{};
  const bool exists = lstat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
    throw TraceFileError(path + " is not a file that could be replaced: give another path");
  }
  if (exists && !overwrite) refuse_existing(path);
  file_ = unnamed_file_.create(O_WRONLY);
  if (file_ < 0) throw TraceFileError("cannot create the trace " + path + ": " + std::strerror(errno));
  file_in_child_ = ClosedInChild(file_);
  // The lock marks a running recording: it ends with the process, even if killed. Some file systems have no locks.
  flock(file_, LOCK_EX | LOCK_NB);
  FileHeader header{};
  std::memcpy(header.magic, kFileMagic, sizeof kFileMagic);
  header.format_version = version;
  std::memcpy(header.session_id, session_id, sizeof session_id);
  header.header_crc = crc32(&header, sizeof header);
  if (!write_at(&header, sizeof header, 0)) {
    const int error = errno;
    remove();
    throw TraceFileError("cannot write the trace " + path + ": " + std::strerror(error));
  }
  size_ = sizeof header;
}

void TraceFile::publish() {
  const int error = unnamed_file_.publish(file_, overwrite_);
  if (error == EEXIST && !overwrite_) refuse_existing(path());
  if (error != 0) throw TraceFileError("cannot create the trace " + path() + ": " + std::strerror(error));
  relock(file_, LOCK_EX);
}

bool TraceFile::switch_to(TraceFile& other, const std::string& other_path) {
  if (rename(other_path.c_str(), path().c_str()) != 0) return false;
  // `other` was locked by its publish().
  std::swap(file_, other.file_);
  std::swap(file_in_child_, other.file_in_child_);
  size_ = other.size_;
  return true;
}

void TraceFile::sync() { fsync(file_); }

void TraceFile::remove() noexcept { unnamed_file_.remove(); }

}  // namespace alloctrace
