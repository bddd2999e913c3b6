// Memory for tables of many megabytes, in pages that suit their use.
#pragma once

#include <cstddef>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace alloctrace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;

enum class Pages {
  // For a table that is read at random: with small pages nearly every access also misses the processor's cache of page
  // addresses, with pages of 2 MiB few do.
  kLarge,
  // For memory that is about to be filled completely: all its pages are requested at once, since a fault for each takes
  // longer than copying the contents.
  kFilled,
};

// For containers of the standard library. Small ones are allocated as usual.
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
    // Only advice: where the system does not follow it, the pages are ordinary ones.
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
