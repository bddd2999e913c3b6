// Stacks that differ only in the module instances that they call.
#pragma once

#include <cstdint>
#include <vector>

#include "../format/definitions.h"

namespace alloctrace {

class SameStacks {
 public:
  // `definitions`: complete, of the whole trace.
  explicit SameStacks(const Definitions& definitions);

  // Return the lowest id of the stacks equal to this one.
  std::uint32_t first_equal(std::uint32_t stack) const { return stack < first_.size() ? first_[stack] : stack; }

 private:
  std::vector<std::uint32_t> first_;  // by stack; empty: no stack calls a module
};

}  // namespace alloctrace
