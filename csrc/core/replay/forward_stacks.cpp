#include "forward_stacks.h"

#include <algorithm>
#include <array>

namespace alloctrace {
namespace {

// Node names of torch's operators that return a view of their input (native_functions.yaml).
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

std::uint32_t ForwardStacks::find(const Event& event) {
  if (event.node_type == 0 || event.stack != 0 || is_of_view(event.node_type)) return 0;
  const auto ring = rings_.find(event.node_thread);
  const std::size_t at = event.node_sequence % kNodesPerThread;
  if (ring == rings_.end() || at / kNodesPerPart >= ring->second.parts.size()) return 0;
  const Part* const part = ring->second.parts[at / kNodesPerPart].get();
  return part && (*part)[at % kNodesPerPart].node == event.node_sequence + 1 ? (*part)[at % kNodesPerPart].stack : 0;
}

// Drop the ring that was switched to longest ago, unless it is the current ring.
void ForwardStacks::drop_oldest_ring() {
  const auto is_older = [](const auto& a, const auto& b) { return a.second.used < b.second.used; };
  const auto oldest = std::min_element(rings_.begin(), rings_.end(), is_older);
  if (oldest == rings_.end() || &oldest->second == last_ring_) return;
  const auto is_there = [](const std::shared_ptr<Part>& part) { return part != nullptr; };
  parts_ -= static_cast<std::size_t>(std::count_if(oldest->second.parts.begin(), oldest->second.parts.end(), is_there));
  rings_.erase(oldest);
}

// Switch to the ring of a thread. A program may start threads in each step (nn.DataParallel), so old rings are dropped.
void ForwardStacks::switch_to(std::uint64_t thread) {
  if (rings_.size() >= kMaxThreads && !rings_.contains(thread)) {
    last_ring_ = nullptr;
    drop_oldest_ring();
  }
  last_thread_ = thread;
  last_ring_ = &rings_[thread];
  last_ring_->used = ++switches_;
}

void ForwardStacks::restore(const Rings& rings) {
  rings_ = rings;
  last_ring_ = nullptr;
  switches_ = parts_ = 0;
  for (const auto& [thread, ring] : rings_) {
    switches_ = std::max(switches_, ring.used);
    for (const std::shared_ptr<Part>& part : ring.parts) parts_ += part ? 1 : 0;
  }
}

std::size_t ForwardStacks::changed_bytes() const {
  std::size_t sum = 0;
  for (const auto& [thread, ring] : rings_) {
    sum += sizeof ring + ring.parts.capacity() * sizeof ring.parts[0];
    for (const std::shared_ptr<Part>& part : ring.parts) sum += part.use_count() == 1 ? sizeof *part : 0;
  }
  return sum;
}

}  // namespace alloctrace
