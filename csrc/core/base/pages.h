// Memory for tables of many megabytes that are read at random. With small pages nearly every access also misses the
// processor's cache of page addresses, with pages of 2 MiB few do.
#pragma once

#include <cstddef>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace alloctrace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;

// For containers of the standard library. Small ones are allocated as usual.
template <typename T>
struct LargePageAllocator {
  using value_type = T;
  LargePageAllocator() = default;
  template <typename Other>
  explicit LargePageAllocator(const LargePageAllocator<Other>&) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    void* const memory = ::operator new(bytes, alignment(bytes));
#ifdef MADV_HUGEPAGE
    // Only advice: where the system does not follow it, the pages are ordinary ones.
    if (bytes >= kLargePage) madvise(memory, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) { ::operator delete(memory, alignment(count * sizeof(T))); }
  bool operator==(const LargePageAllocator&) const = default;

 private:
  static std::align_val_t alignment(std::size_t bytes) {
    return std::align_val_t{bytes >= kLargePage ? kLargePage : alignof(T)};
  }
};

}  // namespace alloctrace
