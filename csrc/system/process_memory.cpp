#include "process_memory.h"

#include <unistd.h>

#include <cstdio>
#include <memory>

namespace alloctrace {
namespace {

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

ResidentMemory resident_memory() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/statm", "re"), &std::fclose);
  unsigned long long size = 0, resident = 0, shared = 0;
  if (!file || std::fscanf(file.get(), "%llu %llu %llu", &size, &resident, &shared) != 3) return {};
  return {resident * page_bytes(), resident > shared ? (resident - shared) * page_bytes() : 0};
}

std::uint64_t machine_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes(); }

}  // namespace alloctrace
