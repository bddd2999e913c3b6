#pragma once

#include <cstdint>

namespace alloctrace {

// Resident memory of this process, in bytes; all 0 if /proc is unreadable.
struct ResidentMemory {
  std::uint64_t total = 0;
  // Private pages without a file: heap, stacks, anonymous and written private mappings. Not shared memory, not files'
  // pages, not swapped pages (RssAnon in /proc/PID/status; statm's resident less its shared pages).
  std::uint64_t anonymous = 0;
};
ResidentMemory resident_memory();
// Return the physical memory of the machine, in bytes.
std::uint64_t machine_bytes();

}  // namespace alloctrace
