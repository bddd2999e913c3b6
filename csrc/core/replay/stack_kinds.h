// What the frames of a stack say about who runs: autograd's engine, code under it, an optimizer.
#pragma once

#include <cstdint>
#include <vector>

#include "../format/definitions.h"

namespace alloctrace {

class StackKinds {
 public:
  explicit StackKinds(const Definitions& definitions) : definitions_(&definitions) {}

  // The innermost frame is the call that runs the engine: what happens there, the engine does, on the caller's thread.
  bool is_engine(std::uint32_t stack) const { return (kinds_of(stack) & kEngine) != 0; }
  // That call is on the stack.
  bool is_under_engine(std::uint32_t stack) const { return (kinds_of(stack) & kUnderEngine) != 0; }
  // The innermost frame is the one that makes the gradients which the engine begins with.
  bool is_root_of_backward(std::uint32_t stack) const { return (kinds_of(stack) & kRoot) != 0; }
  // The code of an optimizer: under a frame of torch.optim, which every subclass of torch.optim.Optimizer has on its
  // stack. The closure that an optimizer calls is not.
  bool is_of_optimizer(std::uint32_t stack) const { return (kinds_of(stack) & kOptimizer) != 0; }

 private:
  static constexpr std::uint8_t kKnown = 1, kEngine = 2, kUnderEngine = 4, kRoot = 8, kOptimizer = 16,
                                kCallsClosure = 32;
  static constexpr std::uint8_t kKnownFile = 1, kTorchFile = 2, kAutogradFile = 4, kOptimizerFile = 8,
                                kWrapperFile = 16;

  std::uint8_t kinds_of(std::uint32_t stack) const {
    if (stack < kinds_.size() && kinds_[stack] != 0) return kinds_[stack];
    return stack == 0 || stack >= definitions_->frame_count() ? kKnown : find(stack);
  }
  std::uint8_t find(std::uint32_t stack) const;
  std::uint8_t kinds_within(std::uint32_t stack, std::uint8_t caller) const;
  std::uint8_t kind_of_file(std::uint32_t filename) const;

  const Definitions* definitions_;
  mutable std::vector<std::uint8_t> kinds_;  // by stack; 0: not looked at yet
  mutable std::vector<std::uint8_t> files_;  // by file name; 0: not looked at yet
};

}  // namespace alloctrace
