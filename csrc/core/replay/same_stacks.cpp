#include "same_stacks.h"

#include <map>
#include <unordered_map>

#include "../base/seeded_hash.h"

namespace alloctrace {

SameStacks::SameStacks(const Definitions& definitions) {
  if (definitions.module_count() == 0) return;
  const auto count = static_cast<std::uint32_t>(definitions.frame_count());
  // First stack by caller and code, then by instruction.
  std::unordered_map<std::uint64_t, std::map<std::uint32_t, std::uint32_t>, SeededHash> first_by_call;
  first_.resize(count);
  for (std::uint32_t stack = 1; stack < count; ++stack) {
    const FrameRecord& frame = definitions.frame(stack);
    // Callers have lower ids; in a corrupt trace, treat any other caller as none.
    const std::uint32_t parent = frame.parent < stack ? first_[frame.parent] : 0;
    if (frame.code == 0) {
      first_[stack] = stack;
      continue;
    }
    auto& first_by_instruction = first_by_call[std::uint64_t{parent} << 32 | frame.code];
    first_[stack] = first_by_instruction.try_emplace(frame.instruction, stack).first->second;
  }
}

}  // namespace alloctrace
