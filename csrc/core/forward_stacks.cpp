#include "forward_stacks.h"

#include <algorithm>
#include <array>

namespace alloctrace {
namespace {

// torch's operators that return a view of their input (native_functions.yaml), as their nodes are called.
constexpr std::array<std::string_view, 33> kViews = {
    "Alias",     "AsStrided", "Chunk",          "Detach",       "Diagonal",      "Expand",     "Imag",
    "Indices",   "Movedim",   "Narrow",         "Permute",      "Real",          "Reshape",    "Select",
    "Slice",     "Split",     "SplitWithSizes", "Squeeze",      "Swapaxes",      "T",          "TensorSplit",
    "Transpose", "Unbind",    "Unflatten",      "Unfold",       "UnsafeSplit",   "UnsafeView", "Unsqueeze",
    "Values",    "View",      "ViewAsReal",     "ReshapeAlias", "ViewAsComplex",
};

}  // namespace

bool is_node_of_view(std::string_view name) {
  // "torch::autograd::generated::SliceBackward0"; mangled, each part follows its length:
  // "...9generated14SliceBackward0E".
  const std::size_t end = name.rfind("Backward");
  if (end == std::string_view::npos) return false;
  const std::size_t begin = name.find_last_of(":0123456789", end == 0 ? 0 : end - 1);
  const std::string_view op = name.substr(begin == std::string_view::npos ? 0 : begin + 1,
                                          end - (begin == std::string_view::npos ? 0 : begin + 1));
  return std::find(kViews.begin(), kViews.end(), op) != kViews.end();
}

bool ForwardStacks::is_of_view(std::uint16_t node_type) {
  while (of_view_.size() <= node_type) {
    of_view_.push_back(is_node_of_view(definitions_->node_type(static_cast<std::uint32_t>(of_view_.size())).name));
  }
  return of_view_[node_type];
}

std::size_t ForwardStacks::bytes(const Rings& rings) {
  std::size_t sum = 0;
  for (const auto& [thread, ring] : rings) {
    for (const std::vector<Entry>& part : ring) sum += sizeof part + part.capacity() * sizeof(Entry);
  }
  return sum;
}

}  // namespace alloctrace
