// How stacks are taken in this process: decided by check_layout, obeyed by current_stack.
#pragma once

#include <cstdint>

namespace alloctrace::python {

enum class WalkMode : std::uint8_t {
  kNone,       // not at all: free-threaded builds
  kPublicApi,  // on threads that hold the GIL
  kDirect,     // on every thread
};
void set_walk_mode(WalkMode mode) noexcept;
// Whether the first argument of a frame can be read, too: not before this was said.
void allow_modules(bool allowed) noexcept;

}  // namespace alloctrace::python
