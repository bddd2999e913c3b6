// Classification of stacks by their frames: autograd's engine, code that it calls, optimizers, calls of modules.
#pragma once

#include <cstdint>
#include <vector>

#include "../format/definitions.h"

namespace alloctrace {

// Stacks that differ only in the module instances that they call.
class SameStacks {
 public:
  // `definitions`: complete, of the whole trace.
  explicit SameStacks(const Definitions& definitions);

  // Return the lowest id of the stacks equal to this one.
  std::uint32_t first_equal(std::uint32_t stack) const { return stack < first_.size() ? first_[stack] : stack; }

 private:
  std::vector<std::uint32_t> first_;  // by stack; empty: no stack calls a module
};

class StackKinds {
 public:
  explicit StackKinds(const Definitions& definitions) : definitions_(&definitions) {}

  // Return whether the innermost frame is the call that runs the engine: the engine then acts on the caller's thread.
  bool is_engine(std::uint32_t stack) const { return (kinds_of(stack) & kEngine) != 0; }
  // Return whether any frame is that call.
  bool is_under_engine(std::uint32_t stack) const { return (kinds_of(stack) & kUnderEngine) != 0; }
  // Return whether the innermost frame creates the gradients that backward starts from.
  bool is_root_of_backward(std::uint32_t stack) const { return (kinds_of(stack) & kRoot) != 0; }
  // Return whether the stack is in an optimizer: under a frame of torch.optim (every torch.optim.Optimizer subclass has
  // one), but not in the closure that an optimizer calls.
  bool is_of_optimizer(std::uint32_t stack) const { return (kinds_of(stack) & kOptimizer) != 0; }
  // Return whether the stack is in the call of a torch.nn.Module, which the engine does not run.
  bool is_in_module(std::uint32_t stack) const { return (kinds_of(stack) & (kModule | kUnderEngine)) == kModule; }
  // Return whether the stack is in Module._apply, which moves or casts the parameters and buffers of a module, or in a
  // constructor of torch.nn, which allocates them.
  bool is_making_parameters(std::uint32_t stack) const { return (kinds_of(stack) & kMakesParameters) != 0; }

 private:
  static constexpr std::uint8_t kComputed = 1, kEngine = 2, kUnderEngine = 4, kRoot = 8, kOptimizer = 16,
                                kCallsClosure = 32, kModule = 64, kMakesParameters = 128;
  static constexpr std::uint8_t kComputedFile = 1, kTorchFile = 2, kAutogradFile = 4, kOptimizerFile = 8,
                                kWrapperFile = 16, kModuleFile = 32, kLayerFile = 64;

  std::uint8_t kinds_of(std::uint32_t stack) const {
    if (stack < kinds_.size() && kinds_[stack] != 0) return kinds_[stack];
    return stack == 0 || stack >= definitions_->frame_count() ? kComputed : compute(stack);
  }
  std::uint8_t compute(std::uint32_t stack) const;
  std::uint8_t kinds_of_frame(std::uint32_t stack, std::uint8_t caller) const;
  std::uint8_t kind_of_file(std::uint32_t filename) const;

  const Definitions* definitions_;
  mutable std::vector<std::uint8_t> kinds_;  // by stack; 0: not computed
  mutable std::vector<std::uint8_t> files_;  // by file name; 0: not computed
};

}  // namespace alloctrace
