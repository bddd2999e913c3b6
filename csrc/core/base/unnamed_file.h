// A file that gets its name when it is whole: a process that is killed before leaves nothing behind.
#pragma once

#include <cstdint>
#include <string>

namespace alloctrace {

// Where a file without a name cannot be had (network file systems, no /proc), it has the name PATH.TAG.unfinished until
// publish(), and a process that is killed before leaves it.
class UnnamedFile {
 public:
  // Creates nothing yet. id: random, its beginning is TAG: no other process has the same.
  UnnamedFile(std::string path, const std::uint8_t (&id)[16]);

  // Returns a descriptor, or -1 with errno. access: O_WRONLY or O_RDWR. Only the user may read and write the file.
  int create(int access);
  // Opens it once more, to read. Returns a descriptor, or -1 with errno.
  int open_again(int file) const;
  // Gives it its name. replace: an existing file of that name is replaced, else that is the error EEXIST. Returns 0, or
  // an errno. file: any open descriptor of it.
  int publish(int file, bool replace);
  bool is_published() const { return is_published_; }
  // Deletes it, whatever its name is.
  void remove() noexcept;

  const std::string& path() const { return path_; }

 private:
  std::string path_, temporary_;
  bool has_name_ = false;  // PATH.TAG.unfinished exists
  bool is_published_ = false;
};

}  // namespace alloctrace
