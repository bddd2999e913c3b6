#include "process_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "crc32.h"
#include "input_file.h"

namespace alloctrace {
namespace {

// The beginning of a file of /proc, whose size is not known; empty where there is none.
std::string read_beginning(const std::string& path) {
  char text[1024];
  const InputFile file(path);
  const std::ptrdiff_t size = file.read_some(text, sizeof text);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}

std::uint64_t this_machine() noexcept {
  const std::string boot_id = read_beginning("/proc/sys/kernel/random/boot_id");
  struct stat status{};
  if (boot_id.empty() || stat("/proc/self/ns/pid", &status) != 0) return 0;
  const std::uint64_t hash = std::uint64_t{crc32(boot_id.data(), boot_id.size())} << 32 | status.st_ino;
  return hash != 0 ? hash : 1;
}

// 0 where there is no such process.
std::uint64_t start_time_of(std::uint64_t process_id) noexcept {
  const std::string stat = read_beginning("/proc/" + std::to_string(process_id) + "/stat");
  // The second field is a name in parentheses, which may have blanks and parentheses of its own.
  std::size_t at = stat.rfind(')');
  for (int field = 2; at != std::string::npos && field < 22; ++field) at = stat.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(stat.c_str() + at, nullptr, 10);
}

}  // namespace

ProcessIdentity ProcessIdentity::current() noexcept {
  const auto process_id = static_cast<std::uint64_t>(getpid());
  return {this_machine(), process_id, start_time_of(process_id)};
}

ProcessState state_of(const ProcessIdentity& process) noexcept {
  if (process.machine == 0 || process.start_time == 0 || process.machine != this_machine()) {
    return ProcessState::kUnknown;
  }
  return start_time_of(process.process_id) == process.start_time ? ProcessState::kRunning : ProcessState::kEnded;
}

}  // namespace alloctrace
