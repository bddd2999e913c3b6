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
#include <string_view>
#include <vector>

#include "definitions.h"
#include "event.h"

namespace alloctrace {

// Whether the autograd nodes of this type (a C++ name, mangled or not) are of views.
bool is_node_of_view(std::string_view name);

class ForwardStacks {
  // A step of the largest models makes tens of thousands of nodes; most programs are far smaller, so the ring of a
  // thread's last nodes is made in parts as it fills.
  static constexpr std::size_t kRemembered = std::size_t{1} << 18, kPart = std::size_t{1} << 12;
  struct Entry {
    std::uint64_t node = 0;  // its number + 1; 0: none
    std::uint32_t stack = 0;
  };
  using Ring = std::array<std::vector<Entry>, kRemembered / kPart>;

 public:
  // All that is remembered, by the number that autograd knows a thread by.
  using Rings = std::map<std::uint64_t, Ring>;

  explicit ForwardStacks(const Definitions& definitions) : definitions_(&definitions) {}
  ForwardStacks(ForwardStacks&&) = default;
  ForwardStacks& operator=(ForwardStacks&&) = default;

  // Takes in the next allocation. Where it is of backward and has no stack of its own: the stack of forward that caused
  // it, 0 when that is not known.
  std::uint32_t take(const Event& event) {
    if (event.node_type == 0) {
      if (event.stack == 0 || event.sequence == 0) return 0;
      Entry& entry = entry_of(definitions_->thread(event.thread).autograd_id, event.sequence - 1);
      if (entry.node != event.sequence) entry = {event.sequence, event.stack};
      return 0;
    }
    if (event.stack != 0 || is_of_view(event.node_type)) return 0;
    const Entry& entry = entry_of(event.node_thread, event.node_sequence);
    return entry.node == event.node_sequence + 1 ? entry.stack : 0;
  }

  const Rings& rings() const { return rings_; }
  void become(const Rings& rings) {
    rings_ = rings;
    last_ring_ = nullptr;
  }
  static std::size_t bytes(const Rings& rings);

 private:
  bool is_of_view(std::uint16_t node_type);

  Entry& entry_of(std::uint64_t thread, std::uint64_t node) {
    if (thread != last_thread_ || !last_ring_) {
      last_thread_ = thread;
      last_ring_ = &rings_[thread];
    }
    const std::size_t at = node % kRemembered;
    std::vector<Entry>& part = (*last_ring_)[at / kPart];
    if (part.empty()) part.resize(kPart);
    return part[at % kPart];
  }

  const Definitions* definitions_;
  std::vector<bool> of_view_;  // by node type
  Rings rings_;
  std::uint64_t last_thread_ = 0;
  Ring* last_ring_ = nullptr;
};

}  // namespace alloctrace
