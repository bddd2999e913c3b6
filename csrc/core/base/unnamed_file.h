// A file that gets its name when it is whole: a process that is killed before leaves nothing behind.
#pragma once

#include <string>

namespace alloctrace {

// Where a file without a name cannot be had (many file systems, no /proc), it is PATH.unfinished until publish(), and a
// process that is killed before leaves it to the next that creates this file.
class UnnamedFile {
 public:
  // Creates nothing yet.
  explicit UnnamedFile(std::string path);

  // Returns a descriptor, or -1 with errno. access: O_WRONLY or O_RDWR. Only the user may read and write the file. The
  // caller locks it (flock) at once: a PATH.unfinished without a lock is taken for that of a killed process.
  int create(int access);
  // Opens it once more, to read. Returns a descriptor, or -1 with errno.
  int open_again(int file) const;
  // Gives it its name, once. replace: an existing file of that name is replaced, else that is the error EEXIST. Returns
  // 0, or an errno. file: any descriptor of it, which is opened anew under the same number: a lock is to be taken
  // again.
  int publish(int file, bool replace);
  bool is_published() const { return is_published_; }
  // Deletes it, whatever its name is.
  void remove() noexcept;

  const std::string& path() const { return path_; }

 private:
  int rename_to_path(const std::string& name, bool replace) const;

  std::string path_;
  std::string temporary_;  // empty: it has no name
  bool is_published_ = false;
};

// Takes a lock (flock: LOCK_SH, LOCK_EX) that was given up a moment ago: a child process that is just being started, or
// a reader that asks whether the recording runs, may hold it for milliseconds. Returns whether it was to be had.
bool lock_again(int file, int operation) noexcept;

}  // namespace alloctrace
