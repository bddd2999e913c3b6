#include "clock.h"

namespace alloctrace {
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
