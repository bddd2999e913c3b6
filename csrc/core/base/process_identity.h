// Process identity, to test later whether it still runs: a process id may be reused or be of another machine.
#pragma once

#include <cstdint>

namespace alloctrace {

struct ProcessIdentity {
  std::uint64_t machine = 0;  // hash of the boot id and the namespace of process ids; 0: unknown
  std::uint64_t process_id = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot (proc(5), stat)

  static ProcessIdentity current();
};

enum class ProcessState { kRunning, kEnded, kUnknown };

// Return the state of a process: kUnknown on another machine, container or boot, or if /proc is unreadable.
ProcessState state_of(const ProcessIdentity& process);

}  // namespace alloctrace
