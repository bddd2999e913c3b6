// Handling of SIGBUS: if another process truncates a mapped file, the program must not be killed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace alloctrace {

// Guard of one shared mapping of a file. On access to a missing page, anonymous pages replace that page and all later
// ones, so that the last word of the mapping shows whether the file is complete. Any other SIGBUS has the action that
// it has without the guard. One guard is active at a time; a later one replaces an earlier one.
class TruncationGuard {
 public:
  TruncationGuard(void* memory, std::size_t bytes);
  // Must run before the memory is unmapped.
  ~TruncationGuard();
  TruncationGuard(const TruncationGuard&) = delete;
  TruncationGuard& operator=(const TruncationGuard&) = delete;

  // Drop the guard in a forked child, where the memory is not mapped.
  static void forget_in_child() noexcept;

 private:
  std::uintptr_t begin_;
};

}  // namespace alloctrace
