#include "closed_in_child.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace alloctrace {
namespace {

constexpr int kUnused = -1, kClaimed = -2;
// Maximum number of marked files. A recording opens four, and keeps them open while its disk stalls.
constexpr std::size_t kMaxMarks = 64;

}  // namespace

struct ClosedInChild::Mark {
  std::atomic<int> file{kUnused};
  // Identify the file: another thread may close it and reuse its descriptor number before the fork.
  dev_t device = 0;
  ino_t inode = 0;
};
ClosedInChild::Mark ClosedInChild::marks[kMaxMarks];

ClosedInChild::ClosedInChild(int file) noexcept {
  struct stat status{};
  if (fstat(file, &status) != 0) return;
  for (Mark& mark : marks) {
    int unused = kUnused;
    if (!mark.file.compare_exchange_strong(unused, kClaimed)) continue;
    mark.device = status.st_dev;
    mark.inode = status.st_ino;
    mark.file.store(file);
    mark_ = &mark;
    return;
  }
}

ClosedInChild::~ClosedInChild() {
  if (mark_ != nullptr) mark_->file.store(kUnused);
}

void ClosedInChild::close_all() noexcept {
  for (Mark& mark : marks) {
    const int file = mark.file.exchange(kUnused);
    struct stat status{};
    if (file >= 0 && fstat(file, &status) == 0 && status.st_dev == mark.device && status.st_ino == mark.inode) {
      close(file);
    }
  }
}

}  // namespace alloctrace
