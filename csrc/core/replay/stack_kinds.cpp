#include "stack_kinds.h"

#include <string_view>

namespace alloctrace {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

std::uint8_t StackKinds::find(std::uint32_t stack) const {
  if (kinds_.size() < definitions_->frame_count()) kinds_.resize(definitions_->frame_count());
  std::vector<std::uint32_t> pending;
  std::uint32_t known = stack;
  for (; known != 0 && kinds_[known] == 0; known = definitions_->frame(known).parent) pending.push_back(known);
  std::uint8_t kinds = known == 0 ? std::uint8_t{kKnown} : kinds_[known];
  for (auto frame = pending.rbegin(); frame != pending.rend(); ++frame) {
    kinds = kinds_[*frame] = kinds_within(*frame, kinds);
  }
  return kinds;
}

// Of a frame whose caller has these kinds.
std::uint8_t StackKinds::kinds_within(std::uint32_t stack, std::uint8_t caller) const {
  const Code& code = definitions_->code(definitions_->frame(stack).code);
  const std::string_view file = definitions_->string(code.filename), name = definitions_->string(code.name);
  std::uint8_t kinds = kKnown | (caller & kUnderEngine);
  if (contains(file, "/torch/autograd/")) {
    if (name == "_engine_run_backward") return static_cast<std::uint8_t>(kinds | kEngine | kUnderEngine);
    if (name == "_make_grads") return kinds | kRoot;
  }
  if (contains(file, "/torch/optim/")) {
    // The frame of optimizer.py wraps the step of every optimizer, the user's own too: what it calls is no closure.
    const bool is_wrapper = file.ends_with("/torch/optim/optimizer.py");
    return kinds | kOptimizer | (is_wrapper ? 0 : kCallsClosure);
  }
  if ((caller & kOptimizer) != 0) {
    if (contains(file, "/torch/")) return kinds | (caller & (kOptimizer | kCallsClosure));
    if ((caller & kCallsClosure) == 0) return kinds | kOptimizer;
  }
  return kinds;
}

}  // namespace alloctrace
