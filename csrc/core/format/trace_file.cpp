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
