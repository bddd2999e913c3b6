#include "clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <fcntl.h>
#include <unistd.h>

#include <string_view>
#endif

namespace alloctrace {

#if defined(__x86_64__)
namespace {

// The kernel compares the counter with other clocks, and of different cores, as long as it runs; the processor only
// says that it was made for this. Under a hypervisor that has a clock of its own, the processor's word has to do.
bool find_out_whether_counter_is_steady() {
  char name[32] = {};
  const int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    const ssize_t size = read(file, name, sizeof name - 1);
    static_cast<void>(size);  // without it, the name stays empty
    close(file);
  }
  std::string_view source(name);
  source = source.substr(0, source.find('\n'));
  if (source == "tsc") return true;
  if (source == "hpet" || source == "acpi_pm" || source.ends_with("jiffies")) return false;
  constexpr unsigned kPowerManagement = 0x80000007, kInvariantCounter = 1u << 8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(kPowerManagement, &a, &b, &c, &d) != 0 && (d & kInvariantCounter) != 0;
}

}  // namespace

const bool counter_is_steady = find_out_whether_counter_is_steady();
#endif

namespace {

const ClockAnchor at_load = ClockAnchor::now();
constexpr std::uint64_t kLongEnoughNs = 1'000'000;  // for four digits

double measure() {
  ClockAnchor now = ClockAnchor::now();
  while (now.monotonic_ns - at_load.monotonic_ns < kLongEnoughNs) now = ClockAnchor::now();
  return static_cast<double>(now.monotonic_ns - at_load.monotonic_ns) /
         static_cast<double>(now.counter - at_load.counter);
}

}  // namespace

double counter_nanoseconds() {
  static const double nanoseconds = measure();
  return nanoseconds;
}

}  // namespace alloctrace
