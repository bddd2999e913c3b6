// Descriptors of the recorder that a forked child must close. An inherited descriptor keeps the file's lock and disk
// space after the parent dies: `finish` would refuse the trace of a killed parent.
#pragma once

#include <utility>

namespace alloctrace {

// Mark on an open file, whose owner closes the file before destroying the mark. Has no effect once all marks are in
// use. Lock-free: a child forked by any thread finds each mark complete or unset.
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

  // Close all marked files. Called once, in a forked child.
  static void close_all() noexcept;

 private:
  struct Mark;
  static Mark marks[];

  Mark* mark_ = nullptr;
};

}  // namespace alloctrace
