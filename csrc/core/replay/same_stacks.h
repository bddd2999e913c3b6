// Stacks that are the same but for the modules that they call: the same lines, through other instances.
#pragma once

#include <cstdint>
#include <vector>

#include "../format/definitions.h"

namespace alloctrace {

class SameStacks {
 public:
  // Of a trace whose definitions are all read.
  explicit SameStacks(const Definitions& definitions);

  // The first of the stacks that are the same as this one.
  std::uint32_t of(std::uint32_t stack) const { return stack < first_.size() ? first_[stack] : stack; }

 private:
  std::vector<std::uint32_t> first_;  // empty: no stack calls a module
};

}  // namespace alloctrace
