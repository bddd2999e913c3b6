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

constexpr mode_t kMode = 0600;  // traces name files and quote source
constexpr const char* kUnfinished = ".unfinished";

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string by_descriptor(int file) { return "/proc/self/fd/" + std::to_string(file); }

bool is_same_file(int file, const std::string& name) {
  struct stat named{}, held{};
  return stat(name.c_str(), &named) == 0 && fstat(file, &held) == 0 && named.st_ino == held.st_ino &&
         named.st_dev == held.st_dev;
}

#ifdef O_TMPFILE
// The system goes on calling a file that had no name "(deleted)" where it was opened so: `alloctrace live`, which finds
// the trace of a process among its open files, would not know it.
void open_by_name(int file, const std::string& path) {
  const int named = open(path.c_str(), (fcntl(file, F_GETFL) & O_ACCMODE) | O_CLOEXEC | O_NOFOLLOW);
  if (named < 0) return;
  const ClosedInChild in_child(named);
  if (is_same_file(file, by_descriptor(named))) dup3(named, file, O_CLOEXEC);
  close(named);
}
#endif

// Deletes the file of a process that was killed; returns whether it did.
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
    if (::access(by_descriptor(unnamed).c_str(), F_OK) == 0) return unnamed;
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

int UnnamedFile::open_again(int file) const {
  return open((temporary_.empty() ? by_descriptor(file) : temporary_).c_str(), O_RDONLY | O_CLOEXEC);
}

int UnnamedFile::publish(int file, bool replace) {
  if (is_published_) return 0;
  int error = 0;
  if (temporary_.empty()) {
    const auto link_as = [file](const std::string& name) {
      return linkat(AT_FDCWD, by_descriptor(file).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
    };
    error = link_as(path_);
    if (error == EEXIST && replace) {
      // No other process has this name: it may replace the same file at this moment.
      const std::string name = path_ + "." + std::to_string(getpid()) + "-" +
                               std::to_string(clock_nanoseconds(CLOCK_MONOTONIC)) + kUnfinished;
      error = link_as(name);
      if (error == 0 && (error = rename_to_path(name, true)) != 0) unlink(name.c_str());
    }
  } else if (is_same_file(file, temporary_)) {
    error = rename_to_path(temporary_, replace);
  } else {
    error = EEXIST;  // that of another process by now, which is not ours to remove
    temporary_.clear();
  }
  is_published_ = error == 0;
#ifdef O_TMPFILE
  if (is_published_ && temporary_.empty()) open_by_name(file, path_);
#endif
  return error;
}

int UnnamedFile::rename_to_path(const std::string& name, bool replace) const {
  if (!replace) {
    if (link(name.c_str(), path_.c_str()) == 0) {
      unlink(name.c_str());
      return 0;
    }
    // A file system without hard links.
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) return errno;
    struct stat status{};
    if (lstat(path_.c_str(), &status) == 0) return EEXIST;
  }
  return rename(name.c_str(), path_.c_str()) == 0 ? 0 : errno;
}

bool lock_again(int file, int operation) noexcept {
  constexpr int kTries = 200;
  for (int tries = 0; flock(file, operation | LOCK_NB) != 0; ++tries) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || tries == kTries) return false;
    const timespec nap{0, 1'000'000};
    nanosleep(&nap, nullptr);
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
