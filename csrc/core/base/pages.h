// Memory for tables of many megabytes that are read at random. With small pages nearly every access also misses the
// processor's cache of page addresses, with pages of 2 MiB few do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace alloctrace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;

// For containers of the standard library. Small ones are allocated as usual. Large ones are mapped, so that what they
// give up when they grow goes back to the system at once, and leaves no holes among what is smaller.
template <typename T>
struct LargePageAllocator {
  using value_type = T;
  LargePageAllocator() = default;
  template <typename Other>
  explicit LargePageAllocator(const LargePageAllocator<Other>&) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
#ifdef MADV_HUGEPAGE
    if (bytes >= kLargePage) return static_cast<T*>(map(bytes));
#endif
    return static_cast<T*>(::operator new(bytes, alignment(bytes)));
  }
  void deallocate(T* memory, std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
#ifdef MADV_HUGEPAGE
    if (bytes >= kLargePage) {
      munmap(memory, whole_pages(bytes));
      return;
    }
#endif
    ::operator delete(memory, alignment(bytes));
  }
  bool operator==(const LargePageAllocator&) const = default;

 private:
  static std::align_val_t alignment(std::size_t bytes) {
    return std::align_val_t{bytes >= kLargePage ? kLargePage : alignof(T)};
  }
#ifdef MADV_HUGEPAGE
  static std::size_t whole_pages(std::size_t bytes) { return (bytes + kLargePage - 1) / kLargePage * kLargePage; }

  static void* map(std::size_t bytes) {
    // More than is needed, for an address that is a multiple of a large page; what is left over at both ends goes back.
    const std::size_t needed = whole_pages(bytes);
    if (needed < bytes || needed + kLargePage < needed) throw std::bad_alloc();
    void* const mapped = mmap(nullptr, needed + kLargePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    char* const begin = static_cast<char*>(mapped);
    const std::size_t before = (kLargePage - reinterpret_cast<std::uintptr_t>(begin) % kLargePage) % kLargePage;
    if (before != 0) munmap(begin, before);
    if (before != kLargePage) munmap(begin + before + needed, kLargePage - before);
    // Only advice: where the system does not follow it, the pages are ordinary ones.
    madvise(begin + before, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
    return begin + before;
  }
#endif
};

}  // namespace alloctrace
