// File that gets its name when complete, so that a killed process leaves no file. Where the system cannot create one
// without a name (many file systems, no /proc), the file is PATH.unfinished until publish(); the next process that
// creates this file deletes PATH.unfinished of a killed process.
#pragma once

#include <string>

namespace alloctrace {

class UnnamedFile {
 public:
  explicit UnnamedFile(std::string path);

  // Create the file, accessible to the user alone, with `access` O_WRONLY or O_RDWR. Return a descriptor, or -1 with
  // errno. The caller must lock the file (flock) at once: other processes delete an unlocked PATH.unfinished.
  int create(int access);
  // Open the file again, for reading. Return a descriptor, or -1 with errno.
  int open_for_reading(int file) const;
  // Give the file its name, once. An existing file is replaced, or without `replace` gives EEXIST. Return 0 or an
  // errno. Reopens `file`, any descriptor of this file, under the same number without its lock: call relock() after.
  int publish(int file, bool replace);
  bool is_published() const { return is_published_; }
  void remove() noexcept;

  const std::string& path() const { return path_; }

 private:
  int rename_to_path(const std::string& name, bool replace) const;

  std::string path_;
  std::string temporary_;  // empty: the file has no name
  bool is_published_ = false;
};

// Lock a file whose lock was just released (flock: LOCK_SH, LOCK_EX). A starting child process, or a reader that tests
// whether the recording runs, may hold the lock for milliseconds. Return whether the lock was acquired.
bool relock(int file, int operation) noexcept;

}  // namespace alloctrace
