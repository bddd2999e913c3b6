#include "unnamed_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace alloctrace {
namespace {

constexpr mode_t kMode = 0600;  // traces name files and quote source

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string by_descriptor(int file) { return "/proc/self/fd/" + std::to_string(file); }

int rename_without_replacing(const char* from, const char* to) {
#ifdef RENAME_NOREPLACE
  if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
#endif
  struct stat status{};
  if (lstat(to, &status) == 0) return EEXIST;
  return rename(from, to) == 0 ? 0 : errno;
}

}  // namespace

UnnamedFile::UnnamedFile(std::string path, const std::uint8_t (&id)[16]) : path_(std::move(path)) {
  char tag[9];
  std::snprintf(tag, sizeof tag, "%02x%02x%02x%02x", id[0], id[1], id[2], id[3]);
  temporary_ = path_ + "." + tag + ".unfinished";
}

int UnnamedFile::create(int access) {
#ifdef O_TMPFILE
  const int file = open(folder_of(path_).c_str(), access | O_TMPFILE | O_CLOEXEC, kMode);
  if (file >= 0) {
    if (::access(by_descriptor(file).c_str(), F_OK) == 0) return file;
    close(file);
  }
#endif
  const int named = open(temporary_.c_str(), access | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  has_name_ = named >= 0;
  return named;
}

int UnnamedFile::open_again(int file) const {
  const std::string name = is_published_ ? path_ : has_name_ ? temporary_ : by_descriptor(file);
  return open(name.c_str(), O_RDONLY | O_CLOEXEC);
}

int UnnamedFile::publish(int file, bool replace) {
  if (is_published_) return 0;
  const auto link_as = [file](const std::string& name) {
    return linkat(AT_FDCWD, by_descriptor(file).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
  };
  int error = has_name_ ? EEXIST : link_as(path_);
  if (error == EEXIST && !has_name_ && replace) {
    error = link_as(temporary_);
    has_name_ = error == 0;
  }
  if (has_name_) {
    error = !replace ? rename_without_replacing(temporary_.c_str(), path_.c_str())
            : rename(temporary_.c_str(), path_.c_str()) == 0 ? 0
                                                             : errno;
  }
  is_published_ = error == 0;
  return error;
}

void UnnamedFile::remove() noexcept {
  if (is_published_) {
    unlink(path_.c_str());
  } else if (has_name_) {
    unlink(temporary_.c_str());
  }
}

}  // namespace alloctrace
