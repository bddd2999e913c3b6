// Processes that this process has started, and those that they have started, found in /proc.
//
// Sampled, not hooked: the program's code is neither run nor changed, and processes started by native code are found
// too. A process that ends between two scans is missed. Needs CONFIG_PROC_CHILDREN, as in the kernels of distributions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace alloctrace {

struct ChildProcess {
  std::uint64_t process_id = 0, parent_id = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot (proc(5), stat): a process id may be reused
  std::string command;           // arguments, separated by zero bytes; "[NAME]" for a process without arguments
};

class ChildProcesses {
 public:
  static constexpr std::size_t kMaxCommandBytes = 1024;
  static constexpr std::size_t kMaxProcesses = 1024;  // a compiler may start thousands
  static constexpr int kMaxCommands = 4;              // of one process: a server may change its title at each request

  // Return the processes that no earlier call returned, and those whose command has changed: a forked process has the
  // command of its parent until it executes another program. Call it ten times a second: it scans when the first
  // process starts, then once a second, in at most a hundredth of the time, or `now`.
  std::vector<ChildProcess> find_new(bool now);

 private:
  using Clock = std::chrono::steady_clock;
  struct Recorded {
    std::uint64_t start_time = 0;
    std::string command;
    int commands = 0;
  };
  std::vector<ChildProcess> scan();
  void add(std::uint64_t process_id, std::uint64_t parent_id, std::vector<ChildProcess>& out);

  std::map<std::uint64_t, Recorded> recorded_;  // by process id
  std::size_t returned_ = 0;                    // processes, each once
  bool had_children_ = false;                   // at the last call
  Clock::time_point last_scan_{};
  Clock::duration scan_duration_{};
};

}  // namespace alloctrace
