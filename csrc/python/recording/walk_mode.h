// How current_stack reads stacks in this process; set by check_layout.
#pragma once

#include <cstdint>

namespace alloctrace::python {

enum class WalkMode : std::uint8_t {
  kNone,       // no stacks: free-threaded builds
  kPublicApi,  // on threads that hold the GIL
  kDirect,     // on every thread
};
void set_walk_mode(WalkMode mode) noexcept;
// Set whether the first argument of a frame can be read, and so the module that it calls. Initially false.
void allow_modules(bool allowed) noexcept;

}  // namespace alloctrace::python
