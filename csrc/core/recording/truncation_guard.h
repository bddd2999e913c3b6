// SIGBUS: another process that truncates a file must not end the program that has the file mapped.
#pragma once

#include <cstddef>
#include <cstdint>

namespace alloctrace {

// Guards one shared mapping of a file: where a page is gone or cannot be had, empty pages of this process take its
// place and that of all behind it. So the last word of the mapping tells whether the file is whole. Any other SIGBUS is
// the program's, as without the guard. There is one guard at a time; a later one takes the place of an earlier one.
class TruncationGuard {
 public:
  TruncationGuard(void* memory, std::size_t bytes);
  // Call it before the memory is unmapped.
  ~TruncationGuard();
  TruncationGuard(const TruncationGuard&) = delete;
  TruncationGuard& operator=(const TruncationGuard&) = delete;

  // In a forked child, which does not have the memory.
  static void forget_in_child() noexcept;

 private:
  std::uintptr_t begin_;
};

}  // namespace alloctrace
