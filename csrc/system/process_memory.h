#pragma once

#include <cstdint>

namespace alloctrace {

// Return the resident bytes of this process; 0 if /proc is unreadable.
std::uint64_t resident_bytes();
// Return the physical memory of the machine, in bytes.
std::uint64_t machine_bytes();

}  // namespace alloctrace
