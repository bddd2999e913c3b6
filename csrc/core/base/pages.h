// Memory for large tables with random access: with small pages nearly every access also misses the TLB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace alloctrace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;

// Allocator for standard containers. Large blocks are mapped: growth returns the old block to the system at once.
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
      munmap(memory, round_up_to_pages(bytes));
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
  static std::size_t round_up_to_pages(std::size_t bytes) { return (bytes + kLargePage - 1) / kLargePage * kLargePage; }

  static void* map(std::size_t bytes) {
    // Map one more large page than needed to find an aligned address, then unmap the excess at both ends.
    const std::size_t needed = round_up_to_pages(bytes);
    if (needed < bytes || needed + kLargePage < needed) throw std::bad_alloc();
    void* const mapped = mmap(nullptr, needed + kLargePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    char* const begin = static_cast<char*>(mapped);
    const std::size_t before = (kLargePage - reinterpret_cast<std::uintptr_t>(begin) % kLargePage) % kLargePage;
    if (before != 0) munmap(begin, before);
    if (before != kLargePage) munmap(begin + before + needed, kLargePage - before);
    // Advice only: the system may ignore it and use small pages.
    madvise(begin + before, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
    return begin + before;
  }
#endif
};

}  // namespace alloctrace
