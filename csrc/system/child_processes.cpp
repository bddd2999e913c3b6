#include "child_processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

namespace alloctrace {
namespace {

constexpr auto kInterval = std::chrono::seconds(1);
constexpr auto kMaxScan = std::chrono::milliseconds(50);
constexpr int kMaxShare = 100;  // a scan may take a hundredth of the time since the last one

// Return the first bytes of a file in /proc, whose size is unknown; empty on failure.
std::string read_start(const std::string& path, std::size_t max_bytes) {
  std::string text(max_bytes, '\0');
  std::size_t size = 0;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  for (ssize_t count = 1; count > 0 && size < max_bytes; size += static_cast<std::size_t>(std::max<ssize_t>(count, 0)))
    count = read(file, text.data() + size, max_bytes - size);
  close(file);
  text.resize(size);
  return text;
}

std::string folder_of(std::uint64_t process_id) { return "/proc/" + std::to_string(process_id); }

// Return true unless this process has no child, running or ended. Collects no child: the program must get its status.
bool has_children() {
  siginfo_t info{};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 || errno != ECHILD;
}

std::vector<std::uint64_t> children_of(std::uint64_t process_id) {
  constexpr std::size_t kMaxBytes = ChildProcesses::kMaxProcesses * 8;
  std::vector<std::uint64_t> children;
  const std::string tasks = folder_of(process_id) + "/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(tasks.c_str()), &closedir);
  if (!folder) return children;
  while (const dirent* const task = readdir(folder.get())) {
    if (task->d_name[0] == '.') continue;
    const std::string list = read_start(tasks + "/" + task->d_name + "/children", kMaxBytes);
    const char* at = list.c_str();
    char* end = nullptr;
    for (; const unsigned long long child = std::strtoull(at, &end, 10); at = end) children.push_back(child);
  }
  return children;
}

// Return name and start time from the status of a process; start time 0 if the process has gone.
std::pair<std::string, std::uint64_t> read_status(std::uint64_t process_id) {
  const std::string status = read_start(folder_of(process_id) + "/stat", 1024);
  // The second field, a name in parentheses, may contain blanks and parentheses.
  const std::size_t begin = status.find('(');
  std::size_t at = status.rfind(')');
  if (begin == std::string::npos || at == std::string::npos || at < begin) return {};
  std::string name = status.substr(begin + 1, at - begin - 1);
  for (int field = 2; at != std::string::npos && field < 22; ++field) at = status.find(' ', at + 1);
  return {std::move(name), at == std::string::npos ? 0 : std::strtoull(status.c_str() + at, nullptr, 10)};
}

// Return the arguments of a process; empty once it has ended.
std::string read_command(std::uint64_t process_id) {
  std::string command = read_start(folder_of(process_id) + "/cmdline", ChildProcesses::kMaxCommandBytes);
  command.resize(command.find_last_not_of('\0') + 1);
  return command;
}

}  // namespace

std::vector<ChildProcess> ChildProcesses::find_new(bool now) {
  const bool had_children = std::exchange(had_children_, has_children());
  if (!had_children_) return {};
  const Clock::time_point begin = Clock::now();
  const Clock::duration pause = std::max<Clock::duration>(
      kMaxShare * scan_duration_, had_children ? Clock::duration(kInterval) : Clock::duration::zero());
  if (!now && begin - last_scan_ < pause) return {};
  std::vector<ChildProcess> new_children = scan();
  last_scan_ = Clock::now();
  scan_duration_ = last_scan_ - begin;
  return new_children;
}

std::vector<ChildProcess> ChildProcesses::scan() {
  const Clock::time_point deadline = Clock::now() + kMaxScan;
  std::vector<ChildProcess> new_children;
  std::vector<std::uint64_t> parents = {static_cast<std::uint64_t>(getpid())};
  // Bounded: process ids that are reused during the scan could form a cycle.
  for (std::size_t number = 0; number < parents.size() && number <= kMaxProcesses; ++number) {
    for (const std::uint64_t child : children_of(parents[number])) {
      if (Clock::now() > deadline) return new_children;  // the others at a later call
      add(child, parents[number], new_children);
      parents.push_back(child);
    }
  }
  return new_children;
}

void ChildProcesses::add(std::uint64_t process_id, std::uint64_t parent_id, std::vector<ChildProcess>& out) {
  const auto [name, start_time] = read_status(process_id);
  if (start_time == 0) return;
  const auto entry = recorded_.find(process_id);
  const bool is_new = entry == recorded_.end() || entry->second.start_time != start_time;
  if (is_new ? returned_ == kMaxProcesses : entry->second.commands == kMaxCommands) return;
  std::string command = read_command(process_id);
  if (is_new) {
    ++returned_;
    if (command.empty()) command = "[" + name + "]";
    recorded_[process_id] = {start_time, command, 1};
  } else {
    if (command.empty() || command == entry->second.command) return;
    entry->second = {start_time, command, entry->second.commands + 1};
  }
  out.push_back({process_id, parent_id, start_time, std::move(command)});
}

}  // namespace alloctrace
