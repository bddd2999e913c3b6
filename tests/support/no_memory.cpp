// Preloaded into a program, a system that has no more memory for one thread of the recorder: operator new throws there.
// Memory that Python asks for is not concerned.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int> starved_thread{0};
std::atomic<long> requests{0}, refused_one{0}, refusals{0};

bool refuses() {
  if (starved_thread.load() == 0 || gettid() != starved_thread.load()) return false;
  const long number = ++requests;
  if (refused_one.load() != 0 && number != refused_one.load()) return false;
  ++refusals;
  return true;
}
}  // namespace

// From now on the requests of this thread fail: the one of this number, counted from 1, or all of them (0). Thread 0:
// none do.
extern "C" void starve(int thread, long number) {
  starved_thread = 0;
  requests = refusals = 0;
  refused_one = number;
  starved_thread = thread;
}
// How many have failed since.
extern "C" long refused() { return refusals; }

void* operator new(std::size_t bytes) {
  void* const memory = refuses() ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
