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

// Return whether the counter has one constant rate on all cores. The kernel stops using a counter that drifts from
// other clocks; the CPUID bit, only a claim, decides where a hypervisor provides the clock.
bool detect_steady_counter() {
  char name[32] = {};
  const int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    const ssize_t size = read(file, name, sizeof name - 1);
    static_cast<void>(size);  // on failure the name stays empty
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

const bool counter_is_steady = detect_steady_counter();
#endif

namespace {

const ClockAnchor load_anchor = ClockAnchor::now();
constexpr std::uint64_t kMinMeasuredNs = 1'000'000;  // for four significant digits

double measure_counter() {
  ClockAnchor now = ClockAnchor::now();
  while (now.monotonic_ns - load_anchor.monotonic_ns < kMinMeasuredNs) now = ClockAnchor::now();
  return static_cast<double>(now.monotonic_ns - load_anchor.monotonic_ns) /
         static_cast<double>(now.counter - load_anchor.counter);
}

}  // namespace

double counter_nanoseconds() {
  static const double nanoseconds = measure_counter();
  return nanoseconds;
}

}  // namespace alloctrace
