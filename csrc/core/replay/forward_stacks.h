// Forward stacks of backward's allocations, which have no Python stack on autograd's threads.
//
// An operator that has created autograd node n allocates while its thread's node counter is n + 1. The first allocation
// at this count belongs to the operator; a later one may belong to an operator without a node. When backward evaluates
// node n, its events contain n and the thread that created the node.
//
// A view allocates nothing in forward, so the first allocation after a view belongs to another operator: nodes of
// views, recognized by type, get no stack. An in-place operator allocates nothing either, but is not recognized: if an
// operator without a node allocates next, backward gets the stack of that operator, near the true stack.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "../format/compaction_codec.h"
#include "../format/definitions.h"
#include "../format/event.h"

namespace alloctrace {

// Return whether the autograd nodes of this type (a C++ name, mangled or not) belong to views.
bool is_node_of_view(std::string_view name);

class ForwardStacks {
  struct Entry {
    std::uint64_t node = 0;  // number of the node + 1; 0: none
    std::uint32_t stack = 0;
  };
  static constexpr std::size_t kNodesPerThread = std::size_t{1} << 18, kNodesPerPart = std::size_t{1} << 10,
                               kMaxThreads = 256;
  // Maximum for all threads together: 128 MiB. Programs need far less; a hostile trace must not take all memory.
  static constexpr std::size_t kMaxParts = std::size_t{1} << 13;
  using Part = std::array<Entry, kNodesPerPart>;
  // The last nodes created by a thread: tens of thousands in a step of the largest models, few on most threads. So a
  // ring grows by parts, and shares unchanged parts with checkpoints.
  struct Ring {
    std::vector<std::shared_ptr<Part>> parts;
    std::uint64_t used = 0;  // value of `switches_` at the last switch to this ring
  };

 public:
  using Rings = std::map<std::uint64_t, Ring>;  // by autograd's id of the thread

  explicit ForwardStacks(const Definitions& definitions) : definitions_(&definitions) {}
  ForwardStacks(ForwardStacks&&) = default;
  ForwardStacks& operator=(ForwardStacks&&) = default;

  // Consume the next allocation. Return its forward stack if backward made it without a stack; 0 if not, or unknown.
  std::uint32_t consume(const Event& event) {
    if (event.node_type != 0) return find(event);
    if (event.stack == 0 || event.sequence == 0) return 0;
    Entry& entry = entry_of(definitions_->thread(event.thread).autograd_id, event.sequence - 1);
    if (entry.node != event.sequence) {
      entry = {event.sequence, event.stack};
      if (event.stack >= nodes_created_.size()) nodes_created_.resize(event.stack + std::size_t{1});
      ++nodes_created_[event.stack];
    }
    return 0;
  }
  // Return the same for an allocation that failed.
  std::uint32_t find(const Event& event);

  // Return by stack about how many allocations were by operators with a node, in this pass: not part of checkpoints.
  const std::vector<std::uint64_t>& nodes_created() const { return nodes_created_; }

  void save(CompactionWriter& out) const;
  void restore(CompactionReader& in);

  const Rings& rings() const { return rings_; }
  void restore(const Rings& rings);
  // Return the bytes that are not shared with a copy of rings().
  std::size_t changed_bytes() const;

 private:
  bool is_of_view(std::uint16_t node_type);
  void switch_to(std::uint64_t thread);
  void drop_oldest_ring();

  Entry& entry_of(std::uint64_t thread, std::uint64_t node) {
    if (thread != last_thread_ || !last_ring_) switch_to(thread);
    const std::size_t at = node % kNodesPerThread;
    if (at / kNodesPerPart >= last_ring_->parts.size()) last_ring_->parts.resize(at / kNodesPerPart + 1);
    std::shared_ptr<Part>& part = last_ring_->parts[at / kNodesPerPart];
    if (part.use_count() != 1) {
      if (!part && ++parts_ > kMaxParts) drop_oldest_ring();
      part = part ? std::make_shared<Part>(*part) : std::make_shared<Part>();
    }
    return (*part)[at % kNodesPerPart];
  }

  const Definitions* definitions_;
  std::vector<bool> of_view_;  // by node type
  std::vector<std::uint64_t> nodes_created_;
  Rings rings_;
  std::size_t parts_ = 0;  // in rings_
  std::uint64_t switches_ = 0;
  std::uint64_t last_thread_ = 0;
  Ring* last_ring_ = nullptr;
};

}  // namespace alloctrace
