// Descriptors of ours that a forked child closes. One that it inherits keeps the file's lock and its disk space after
// the parent's end: `finish` would then refuse the trace of a parent that was killed.
#pragma once

#include <utility>

namespace alloctrace {

// Marks an open file for as long as the object lives; the owner closes the file first. Does nothing when more files
// are marked than there is room for. No lock: the child of any thread finds each mark whole, or not at all.
class ClosedInChild {
 public:
  ClosedInChild() = default;
  explicit ClosedInChild(int file) noexcept;
  ClosedInChild(ClosedInChild&& other) noexcept : mark_(std::exchange(other.mark_, nullptr)) {}
  ClosedInChild& operator=(ClosedInChild&& other) noexcept {
    std::swap(mark_, other.mark_);
    return *this;
  }
  ~ClosedInChild();

  // In a forked child, once: closes the files that are marked.
  static void close_all() noexcept;

 private:
  struct Mark;
  static Mark marks[];

  Mark* mark_ = nullptr;
};

}  // namespace alloctrace
