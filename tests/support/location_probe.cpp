// What it costs to find the id of a location that is known, in a count that no busy machine changes: the functions that
// are called (built with -finstrument-functions) and the memory that is asked for.
//
//   location_probe TRACE SPOOL LOCATIONS
//
// Defines that many locations, as thousands of graph pools do, then looks each up once more. Prints calls and
// allocations in all.
#include <cstdio>
#include <cstdlib>
#include <new>

#include "../../csrc/core/recording/recorder.h"

using namespace alloctrace;

namespace {
thread_local std::uint64_t calls, allocations;
}

extern "C" {
[[gnu::no_instrument_function]] void __cyg_profile_func_enter(void*, void*) { ++calls; }
[[gnu::no_instrument_function]] void __cyg_profile_func_exit(void*, void*) {}
}
void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main(int, char** arguments) {
  RecorderOptions options;
  options.path = arguments[1];
  options.spool.path = arguments[2];
  options.header_json = "{}";
  Recorder recorder(options);
  const auto count = static_cast<std::uint64_t>(std::atoll(arguments[3]));
  // One stream of each device, at an address as torch gives it, and a pool for each graph.
  const auto location = [](std::uint64_t number) { return Location{1, 0, 0x55d2a0c01200, 0, number}; };
  for (std::uint64_t i = 0; i < count; ++i) {
    if (recorder.location_id(location(i)) != i + 1) return 1;
  }
  calls = allocations = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (recorder.location_id(location(i)) != i + 1) return 1;
  }
  std::printf("%llu %llu\n", static_cast<unsigned long long>(calls), static_cast<unsigned long long>(allocations));
  return 0;
}
