#include "unnamed_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "clock.h"
#include "closed_in_child.h"

namespace alloctrace {
namespace {

constexpr mode_t kMode = 0600;  // traces contain paths and source text
constexpr const char* kUnfinished = ".unfinished";

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string fd_path(int file) { return "/proc/self/fd/" + std::to_string(file); }

bool is_same_file(int file, const std::string& name) {
  struct stat named{}, opened{};
  return stat(name.c_str(), &named) == 0 && fstat(file, &opened) == 0 && named.st_ino == opened.st_ino &&
         named.st_dev == opened.st_dev;
}

#ifdef O_TMPFILE
// Reopen `file` by its new name: /proc keeps showing "(deleted)", and `alloctrace live` searches open files by name.
void reopen_by_name(int file, const std::string& path) {
  const int named = open(path.c_str(), (fcntl(file, F_GETFL) & O_ACCMODE) | O_CLOEXEC | O_NOFOLLOW);
  if (named < 0) return;
  const ClosedInChild in_child(named);
  if (is_same_file(file, fd_path(named))) dup3(named, file, O_CLOEXEC);
  close(named);
}
#endif

// Delete the file of a killed process. Return whether it was deleted.
bool remove_unlocked(const std::string& name) {
  const int file = open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (file < 0) return false;
  const bool is_locked = flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  const bool is_removed = !is_locked && unlink(name.c_str()) == 0;
  close(file);
  return is_removed;
}

}  // namespace

UnnamedFile::UnnamedFile(std::string path) : path_(std::move(path)) {}

int UnnamedFile::create(int access) {
#ifdef O_TMPFILE
  const int unnamed = open(folder_of(path_).c_str(), access | O_TMPFILE | O_CLOEXEC, kMode);
  if (unnamed >= 0) {
    if (::access(fd_path(unnamed).c_str(), F_OK) == 0) return unnamed;
    close(unnamed);
  }
#endif
  const std::string name = path_ + kUnfinished;
  const auto create_named = [&] { return open(name.c_str(), access | O_CREAT | O_EXCL | O_CLOEXEC, kMode); };
  int named = create_named();
  if (named < 0 && errno == EEXIST && remove_unlocked(name)) named = create_named();
  if (named >= 0) temporary_ = name;
  return named;
}

int UnnamedFile::open_for_reading(int file) const {
  return open((temporary_.empty() ? fd_path(file) : temporary_).c_str(), O_RDONLY | O_CLOEXEC);
}

int UnnamedFile::publish(int file, bool replace) {
  if (is_published_) return 0;
  int error = 0;
  if (temporary_.empty()) {
    const auto link_as = [file](const std::string& name) {
      return linkat(AT_FDCWD, fd_path(file).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
    };
    error = link_as(path_);
    if (error == EEXIST && replace) {
      // Unique temporary name: another process may be replacing the same file.
      const std::string name = path_ + "." + std::to_string(getpid()) + "-" +
                               std::to_string(clock_nanoseconds(CLOCK_MONOTONIC)) + kUnfinished;
      error = link_as(name);
      if (error == 0 && (error = rename_to_path(name, true)) != 0) unlink(name.c_str());
    }
  } else if (is_same_file(file, temporary_)) {
    error = rename_to_path(temporary_, replace);
  } else {
    error = EEXIST;  // now the file of another process, which must not be removed
    temporary_.clear();
  }
  is_published_ = error == 0;
#ifdef O_TMPFILE
  if (is_published_ && temporary_.empty()) reopen_by_name(file, path_);
#endif
  return error;
}

int UnnamedFile::rename_to_path(const std::string& name, bool replace) const {
  if (!replace) {
    if (link(name.c_str(), path_.c_str()) == 0) {
      unlink(name.c_str());
      return 0;
    }
    // This file system has no hard links.
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) return errno;
    struct stat status{};
    if (lstat(path_.c_str(), &status) == 0) return EEXIST;
  }
  return rename(name.c_str(), path_.c_str()) == 0 ? 0 : errno;
}

bool relock(int file, int operation) noexcept {
  constexpr int kMaxTries = 200;
  for (int tries = 0; flock(file, operation | LOCK_NB) != 0; ++tries) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || tries == kMaxTries) return false;
    const timespec delay{0, 1'000'000};
    nanosleep(&delay, nullptr);
  }
  return true;
}

void UnnamedFile::remove() noexcept {
  if (is_published_) {
    unlink(path_.c_str());
  } else if (!temporary_.empty()) {
    unlink(temporary_.c_str());
  }
}

}  // namespace alloctrace
