#include "process_identity.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "crc32.h"
#include "input_file.h"

namespace alloctrace {
namespace {

// Return the start of a file in /proc, whose size is unknown; empty on failure.
std::string read_start(const std::string& path) {
  char text[1024];
  const InputFile file(path);
  const std::ptrdiff_t size = file.read_some(text, sizeof text);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}

std::uint64_t hash_machine() {
  const std::string boot_id = read_start("/proc/sys/kernel/random/boot_id");
  struct stat status{};
  if (boot_id.empty() || stat("/proc/self/ns/pid", &status) != 0) return 0;
  const std::uint64_t hash = std::uint64_t{crc32(boot_id.data(), boot_id.size())} << 32 | status.st_ino;
  return hash != 0 ? hash : 1;
}

struct ProcessStatus {
  std::uint64_t start_time = 0;  // 0: could not be read
  bool has_ended = false;
};

ProcessStatus read_status(std::uint64_t process_id) {
  const std::string stat = read_start("/proc/" + std::to_string(process_id) + "/stat");
  // The second field, a name in parentheses, may contain blanks and parentheses.
  std::size_t at = stat.rfind(')');
  if (at == std::string::npos) return {0, kill(static_cast<pid_t>(process_id), 0) != 0 && errno == ESRCH};
  const char state = at + 2 < stat.size() ? stat[at + 2] : ' ';
  for (int field = 2; at != std::string::npos && field < 22; ++field) at = stat.find(' ', at + 1);
  const bool is_read = at != std::string::npos;
  return {is_read ? std::strtoull(stat.c_str() + at, nullptr, 10) : 0, state == 'Z' || state == 'X'};
}

}  // namespace

ProcessIdentity ProcessIdentity::current() {
  const auto process_id = static_cast<std::uint64_t>(getpid());
  return {hash_machine(), process_id, read_status(process_id).start_time};
}

ProcessState state_of(const ProcessIdentity& process) {
  if (process.machine == 0 || process.start_time == 0 || process.machine != hash_machine()) {
    return ProcessState::kUnknown;
  }
  const ProcessStatus status = read_status(process.process_id);
  if (status.has_ended) return ProcessState::kEnded;
  if (status.start_time == 0) return ProcessState::kUnknown;
  return status.start_time == process.start_time ? ProcessState::kRunning : ProcessState::kEnded;
}

}  // namespace alloctrace
