// csrc/torch/cuda/allocator_settings.h on settings that are returned by reference, as torch 2.10 and newer return them,
// or by value, as torch 2.9 does (-DBY_VALUE). Prints, a line for each setting that is made: whether a request that it
// concerns sees the change, whether it sees none once the settings were read, the divisions that were read, and how
// often the two comparisons allocated memory.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "../../csrc/torch/cuda/allocator_settings.h"

namespace {

int allocations = 0;

#ifdef BY_VALUE
using Returned = std::vector<std::size_t>;
#else
using Returned = const std::vector<std::size_t>&;
#endif

struct SharedConfig {
  static std::vector<std::size_t>& instance() {
    static std::vector<std::size_t> divisions(16, 0);
    return divisions;
  }
  static Returned roundup_power2_divisions() { return instance(); }
  // As torch finds a size's interval.
  static std::size_t roundup_power2_divisions(std::size_t size) {
    std::size_t interval = 0;
    while (interval < 15 && size >= std::size_t{2 << 20} << interval) ++interval;
    return instance()[interval];
  }
};

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* const made = std::malloc(size)) return made;
  throw std::bad_alloc();
}
void operator delete(void* address) noexcept { std::free(address); }
void operator delete(void* address, std::size_t) noexcept { std::free(address); }

int main() {
  using namespace alloctrace::torch_side;
  RoundingDivisions seen = read_rounding_divisions<SharedConfig>();
  const auto report = [&](std::size_t size) {
    const int before = allocations;
    const bool changed = !same_rounding_divisions<SharedConfig>(seen, size);
    const int comparing = allocations - before;
    seen = read_rounding_divisions<SharedConfig>();
    const int read = allocations;
    const bool settled = same_rounding_divisions<SharedConfig>(seen, size);
    std::printf("%d %d", changed, settled);
    for (const std::size_t division : seen) std::printf(" %zu", division);
    std::printf(" %d\n", comparing + allocations - read);
  };
  std::vector<std::size_t>& now = SharedConfig::instance();
  report(1);
  now.assign(now.size(), 4);
  report(5 << 20);
  now.front() = 8;
  report(512);
  now[3] = 16;
  report((16 << 20) - 1);
  now.back() = 2;
  report(std::size_t{200} << 30);
  report(1 << 20);
}
