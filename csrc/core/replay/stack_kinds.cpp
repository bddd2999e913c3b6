#include "stack_kinds.h"

#include <map>
#include <string_view>
#include <unordered_map>

#include "../base/hash.h"

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

namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

std::uint8_t StackKinds::compute(std::uint32_t stack) const {
  if (kinds_.size() < definitions_->frame_count()) kinds_.resize(definitions_->frame_count());
  std::vector<std::uint32_t> pending;
  std::uint32_t caller = stack;
  for (; caller != 0 && kinds_[caller] == 0; caller = definitions_->frame(caller).parent) pending.push_back(caller);
  std::uint8_t kinds = caller == 0 ? std::uint8_t{kComputed} : kinds_[caller];
  for (auto frame = pending.rbegin(); frame != pending.rend(); ++frame) {
    kinds = kinds_[*frame] = kinds_of_frame(*frame, kinds);
  }
  return kinds;
}

// Return the kind of a file, computed once: file names are long, and many functions share one.
std::uint8_t StackKinds::kind_of_file(std::uint32_t filename) const {
  const std::string_view file = definitions_->string(filename);
  if (file.empty()) return kComputedFile;  // filename may be any number
  if (filename >= files_.size()) files_.resize(filename + std::size_t{1});
  std::uint8_t& kind = files_[filename];
  if (kind != 0) return kind;
  kind = kComputedFile;
  if (!contains(file, "/torch/")) return kind;
  kind |= kTorchFile;
  if (contains(file, "/torch/autograd/")) kind |= kAutogradFile;
  if (contains(file, "/torch/optim/")) kind |= kOptimizerFile;
  if (file.ends_with("/torch/optim/optimizer.py")) kind |= kWrapperFile;
  if (file.ends_with("/torch/nn/modules/module.py")) kind |= kModuleFile;
  if (contains(file, "/torch/nn/modules/")) kind |= kLayerFile;
  return kind;
}

// Return the kinds of a stack whose caller has kinds `caller`.
std::uint8_t StackKinds::kinds_of_frame(std::uint32_t stack, std::uint8_t caller) const {
  const Code& code = definitions_->code(definitions_->frame(stack).code);
  const std::uint8_t file = kind_of_file(code.filename);
  const std::string_view name = definitions_->string(code.name);
  std::uint8_t kinds = kComputed | (caller & (kUnderEngine | kModule | kMakesParameters));
  if ((file & kModuleFile) != 0 && name == "_call_impl") kinds |= kModule;
  if ((file & kModuleFile) != 0 && name == "_apply") kinds |= kMakesParameters;
  if ((file & kLayerFile) != 0 && name == "__init__") kinds |= kMakesParameters;
  if ((file & kAutogradFile) != 0) {
    if (name == "_engine_run_backward") return static_cast<std::uint8_t>(kinds | kEngine | kUnderEngine);
    if (name == "_make_grads") return kinds | kRoot;
  }
  if ((file & kOptimizerFile) != 0) {
    // optimizer.py wraps the step of every optimizer, also a user's: the function that it calls is no closure.
    return kinds | kOptimizer | ((file & kWrapperFile) != 0 ? 0 : kCallsClosure);
  }
  if ((caller & kOptimizer) != 0) {
    if ((file & kTorchFile) != 0) return kinds | (caller & (kOptimizer | kCallsClosure));
    if ((caller & kCallsClosure) == 0) return kinds | kOptimizer;
  }
  return kinds;
}

}  // namespace alloctrace
