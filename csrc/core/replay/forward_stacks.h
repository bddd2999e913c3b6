// Ties an allocation of backward, which has no Python stack in autograd's threads, to the line of forward that caused
// it.
//
// The operator that has just made the autograd node with sequence number n allocates while its thread's counter stands
// at n + 1, and the first allocation that finds it there is its own (a later one may be of an operator that makes no
// node). Backward then evaluates the node with that number, which knows the thread that made it.
//
// A view allocates nothing in forward, so the first allocation after it is another operator's: nodes of views are known
// by their type and stay without a line. An operator that works in place allocates nothing either and cannot be told
// apart: where one without a node allocates next, the line is that one's, near the true one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "../format/definitions.h"
#include "../format/event.h"
#include "fold_codec.h"

namespace alloctrace {

// Whether the autograd nodes of this type (a C++ name, mangled or not) are of views.
bool is_node_of_view(std::string_view name);

class ForwardStacks {
  struct Entry {
    std::uint64_t node = 0;  // its number + 1; 0: none
    std::uint32_t stack = 0;
  };
  static constexpr std::size_t kRemembered = std::size_t{1} << 18, kPart = std::size_t{1} << 10, kThreads = 256;
  // Of all threads together: 128 MiB. No program comes near; a made-up trace may want all that there is.
  static constexpr std::size_t kMostParts = std::size_t{1} << 13;
  using Part = std::array<Entry, kPart>;
  // The last nodes that a thread made. A step of the largest models makes tens of thousands, most threads make few, so
  // it grows in parts; these are shared with the checkpoints that were made since they changed.
  struct Ring {
    std::vector<std::shared_ptr<Part>> parts;
    std::uint64_t used = 0;  // when it was last turned to
  };

 public:
  // All that is remembered, by the number that autograd knows a thread by.
  using Rings = std::map<std::uint64_t, Ring>;

  explicit ForwardStacks(const Definitions& definitions) : definitions_(&definitions) {}
  ForwardStacks(ForwardStacks&&) = default;
  ForwardStacks& operator=(ForwardStacks&&) = default;

  // Takes in the next allocation. Where it is of backward and has no stack of its own: the stack of the forward that
  // caused it, 0 when unknown.
  std::uint32_t take(const Event& event) {
    if (event.node_type != 0) return find(event);
    if (event.stack == 0 || event.sequence == 0) return 0;
    Entry& entry = entry_of(definitions_->thread(event.thread).autograd_id, event.sequence - 1);
    if (entry.node != event.sequence) {
      entry = {event.sequence, event.stack};
      if (event.stack >= nodes_made_.size()) nodes_made_.resize(event.stack + std::size_t{1});
      ++nodes_made_[event.stack];
    }
    return 0;
  }
  // The same for a request that was refused.
  std::uint32_t find(const Event& event);

  // By stack: how many of its allocations were of operators that made a node, about. Since the beginning of the pass:
  // not part of the state.
  const std::vector<std::uint64_t>& nodes_made() const { return nodes_made_; }

  void save(FoldWriter& fold) const;
  void restore(FoldReader& fold);

  const Rings& rings() const { return rings_; }
  void become(const Rings& rings);
  // How much changed since rings() was last copied.
  std::size_t changed_bytes() const;

 private:
  bool is_of_view(std::uint16_t node_type);
  void turn_to(std::uint64_t thread);
  void forget_a_thread();

  Entry& entry_of(std::uint64_t thread, std::uint64_t node) {
    if (thread != last_thread_ || !last_ring_) turn_to(thread);
    const std::size_t at = node % kRemembered;
    if (at / kPart >= last_ring_->parts.size()) last_ring_->parts.resize(at / kPart + 1);
    std::shared_ptr<Part>& part = last_ring_->parts[at / kPart];
    if (part.use_count() != 1) {
      if (!part && ++parts_ > kMostParts) forget_a_thread();
      part = part ? std::make_shared<Part>(*part) : std::make_shared<Part>();
    }
    return (*part)[at % kPart];
  }

  const Definitions* definitions_;
  std::vector<bool> of_view_;  // by node type
  std::vector<std::uint64_t> nodes_made_;
  Rings rings_;
  std::size_t parts_ = 0;  // in rings_
  std::uint64_t turns_ = 0;
  std::uint64_t last_thread_ = 0;
  Ring* last_ring_ = nullptr;
};

}  // namespace alloctrace
