// Memory in large pages for tables that are read at random. Of a table of many megabytes nearly every access misses the
// processor's cache of page addresses too; with pages of 2 MiB it does not.
#pragma once

#include <cstddef>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace alloctrace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;

// For containers of the standard library. Small ones are allocated as ever.
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
    // A wish: where the system does not grant it, small pages do.
    if (bytes >= kLargePage) madvise(memory, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) { ::operator delete(memory, alignment(count * sizeof(T))); }
  bool operator==(const LargePageAllocator&) const = default;

 private:
  static std::align_val_t alignment(std::size_t bytes) {
    return std::align_val_t{bytes >= kLargePage ? kLargePage : alignof(T) > 16 ? alignof(T) : 16};
  }
};

// Memory that is about to be filled whole: asked for at once, since a fault for each of its pages takes longer than
// what is copied into it.
template <typename T>
struct FilledAllocator {
  using value_type = T;
  FilledAllocator() = default;
  template <typename Other>
  explicit FilledAllocator(const FilledAllocator<Other>&) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    void* const memory = ::operator new(bytes, std::align_val_t{4096});
#ifdef MADV_POPULATE_WRITE
    if (bytes >= kLargePage) madvise(memory, bytes / 4096 * 4096, MADV_POPULATE_WRITE);
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, std::align_val_t{4096}); }
  bool operator==(const FilledAllocator&) const = default;
};

}  // namespace alloctrace
