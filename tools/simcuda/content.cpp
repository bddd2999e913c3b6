#include "content.h"

#include <algorithm>
#include <map>
#include <memory>

#include "memory.h"

namespace simcuda {
namespace {

struct Content {
  uint64_t kept = 0;                     // of all allocations
  std::map<uint64_t, uint64_t> written;  // start -> end, since the last launch
};

Content& content() {
  static auto* const all = std::make_unique<Content>().release();
  return *all;
}

}  // namespace

bool may_keep(uint64_t address, uint64_t size) {
  if (size > settings().copy_limit) return false;
  Allocation* found = find_allocation(address);
  if (found == nullptr || !found->on_device()) return true;
  const uint64_t grown = std::min(found->reserved, found->content + size) - found->content;
  if (content().kept + grown > settings().content_limit) return false;
  found->content += grown;
  content().kept += grown;
  return true;
}

void forget_content(const Allocation& allocation) { content().kept -= allocation.content; }

void note_written(uint64_t address, uint64_t size) {
  auto& written = content().written;
  uint64_t end = address + size;
  auto next = written.upper_bound(end);
  while (next != written.begin()) {
    const auto previous = std::prev(next);
    if (previous->second < address) break;
    address = std::min(address, previous->first);
    end = std::max(end, previous->second);
    next = written.erase(previous);
  }
  written[address] = end;
}

void note_launch() {
  if (!content().written.empty()) content().written.clear();
}

bool written_since_launch(uint64_t address, uint64_t size) {
  const auto next = content().written.upper_bound(address);
  return next != content().written.begin() && std::prev(next)->second >= address + size;
}

}  // namespace simcuda
