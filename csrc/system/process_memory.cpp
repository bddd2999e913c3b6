#include "process_memory.h"

#include <unistd.h>

#include <cstdio>
#include <memory>

namespace alloctrace {
namespace {

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

std::uint64_t resident_bytes() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/statm", "re"), &std::fclose);
  unsigned long long size = 0, resident = 0;
  if (!file || std::fscanf(file.get(), "%llu %llu", &size, &resident) != 2) return 0;
  return resident * page_bytes();
}

std::uint64_t machine_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes(); }

}  // namespace alloctrace
