// What the operating system says of this process's memory.
#pragma once

#include <cstdint>

namespace alloctrace {

// Bytes that are resident in the machine's memory; 0 where /proc does not say.
std::uint64_t resident_bytes();
// Bytes of the machine.
std::uint64_t machine_bytes();

}  // namespace alloctrace
