#include "address_space.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "simcuda.h"

namespace simcuda {

void FreeRanges::give(uint64_t start, uint64_t size) {
  auto next = ranges_.lower_bound(start);
  if (next != ranges_.end() && start + size == next->first) {
    size += next->second;
    next = ranges_.erase(next);
  }
  if (next != ranges_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      previous->second += size;
      return;
    }
  }
  ranges_.emplace(start, size);
}

uint64_t FreeRanges::take(uint64_t size, uint64_t alignment) {
  for (auto range = ranges_.rbegin(); range != ranges_.rend(); ++range) {
    const auto [start, length] = *range;
    if (length < size) continue;
    const uint64_t aligned = (start + length - size) / alignment * alignment;
    if (aligned < start) continue;
    take_at(aligned, size);
    return aligned;
  }
  return 0;
}

void FreeRanges::take_at(uint64_t start, uint64_t size) {
  const auto found = std::prev(ranges_.upper_bound(start));
  const auto [range_start, range_size] = *found;
  ranges_.erase(found);
  if (start > range_start) ranges_.emplace(range_start, start - range_start);
  const uint64_t end = start + size;
  const uint64_t range_end = range_start + range_size;
  if (range_end > end) ranges_.emplace(end, range_end - end);
}

uint64_t reserve_addresses(uint64_t size, uint64_t alignment) {
  const uint64_t wanted = size + alignment;
  // Shared, so that the kernel does not count it as anonymous memory of the process.
  void* mapped = mmap(nullptr, wanted, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return 0;
  const auto start = reinterpret_cast<uint64_t>(mapped);
  const uint64_t aligned = (start + alignment - 1) / alignment * alignment;
  release_addresses(start, aligned - start);
  release_addresses(aligned + size, start + wanted - (aligned + size));
  // A huge page would cost the host 2 MiB for the first byte that is copied in, and a core file would contain all of
  // it.
  madvise(reinterpret_cast<void*>(aligned), size, MADV_NOHUGEPAGE);
  madvise(reinterpret_cast<void*>(aligned), size, MADV_DONTDUMP);
  return aligned;
}

void release_addresses(uint64_t start, uint64_t size) {
  if (size == 0) return;
  // Pages of a shared mapping exist until all of it is unmapped.
  madvise(reinterpret_cast<void*>(start), size, MADV_REMOVE);
  munmap(reinterpret_cast<void*>(start), size);
}

bool back_addresses(uint64_t start, uint64_t size) {
  return mprotect(reinterpret_cast<void*>(start), size, PROT_READ | PROT_WRITE) == 0;
}

void unback_addresses(uint64_t start, uint64_t size) {
  madvise(reinterpret_cast<void*>(start), size, MADV_REMOVE);
  mprotect(reinterpret_cast<void*>(start), size, PROT_NONE);
}

void zero_addresses(uint64_t start, uint64_t size) {
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t first = (start + page - 1) / page * page;
  const uint64_t last = (start + size) / page * page;
  if (first >= last) {
    std::memset(reinterpret_cast<void*>(start), 0, size);
    return;
  }
  std::memset(reinterpret_cast<void*>(start), 0, first - start);
  madvise(reinterpret_cast<void*>(first), last - first, MADV_REMOVE);
  std::memset(reinterpret_cast<void*>(last), 0, start + size - last);
}

}  // namespace simcuda
