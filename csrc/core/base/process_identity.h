// Which process this is, so that another one can tell later whether it still runs: a process id alone may have been
// given out again, or belong to another machine.
#pragma once

#include <cstdint>

namespace alloctrace {

struct ProcessIdentity {
  std::uint64_t machine = 0;  // a hash of the boot id and the namespace of process ids; 0: not known
  std::uint64_t process_id = 0;
  std::uint64_t start_time = 0;  // in clock ticks since the boot (see proc(5), stat)

  static ProcessIdentity current();
};

enum class ProcessState { kRunning, kEnded, kUnknown };

// kUnknown: of another machine, container or boot, or where /proc has no answer.
ProcessState state_of(const ProcessIdentity& process);

}  // namespace alloctrace
