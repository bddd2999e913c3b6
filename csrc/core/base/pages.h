// Memory for tables of many megabytes, in pages as their use wants them.
#pragma once

#include <cstddef>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace alloctrace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;

enum class Pages {
  // For a table that is read at random: with small pages nearly every access misses the processor's cache of page
  // addresses too, with pages of 2 MiB it does not.
  kLarge,
  // For memory that is about to be filled whole: it is asked for at once, since a fault for each of its pages takes
  // longer than what is copied into it.
  kFilled,
};

// For containers of the standard library. Small ones are allocated as ever.
template <typename T, Pages pages>
struct PageAllocator {
  using value_type = T;
  template <typename Other>
  struct rebind {
    using other = PageAllocator<Other, pages>;
  };
  PageAllocator() = default;
  template <typename Other>
  explicit PageAllocator(const PageAllocator<Other, pages>&) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    void* const memory = ::operator new(bytes, alignment(bytes));
#if defined(MADV_HUGEPAGE) && defined(MADV_POPULATE_WRITE)
    // A wish: where the system does not grant it, the pages come as ever.
    if (bytes >= kLargePage) {
      madvise(memory, bytes / kLargePage * kLargePage, pages == Pages::kLarge ? MADV_HUGEPAGE : MADV_POPULATE_WRITE);
    }
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) { ::operator delete(memory, alignment(count * sizeof(T))); }
  bool operator==(const PageAllocator&) const = default;

 private:
  static std::align_val_t alignment(std::size_t bytes) {
    return std::align_val_t{bytes >= kLargePage ? kLargePage : alignof(T)};
  }
};

}  // namespace alloctrace
