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

namespace alloctrace {

// Whether the autograd nodes of this type (a C++ name, mangled or not) are of views.
bool is_node_of_view(std::string_view name);

class ForwardStacks {
 public:
  ForwardStacks() = default;
  ForwardStacks(ForwardStacks&&) = default;
  ForwardStacks(const ForwardStacks&) = delete;

  // An allocation outside of backward, on the thread that autograd knows by this number.
  void note(std::uint64_t thread, std::uint64_t counter, std::uint32_t stack) {
    if (stack == 0 || counter == 0) return;
    Entry& entry = entry_of(thread, counter - 1);
    if (entry.node != counter) entry = {counter, stack};
  }
  // The stack of forward for the node that backward evaluates; 0 where none is known.
  std::uint32_t find(std::uint64_t thread, std::uint64_t node) {
    const Entry& entry = entry_of(thread, node);
    return entry.node == node + 1 ? entry.stack : 0;
  }

 private:
  // The last nodes of each thread. A step of the largest models makes tens of thousands; most programs are far smaller,
  // so the ring is made in parts as it fills.
  static constexpr std::size_t kRemembered = std::size_t{1} << 18, kPart = std::size_t{1} << 12;
  struct Entry {
    std::uint64_t node = 0;  // its number + 1; 0: none
    std::uint32_t stack = 0;
  };
  using Part = std::array<Entry, kPart>;
  using Ring = std::array<std::unique_ptr<Part>, kRemembered / kPart>;

  Entry& entry_of(std::uint64_t thread, std::uint64_t node) {
    if (thread != last_thread_ || !last_ring_) {
      last_thread_ = thread;
      last_ring_ = &rings_[thread];
    }
    const std::size_t at = node % kRemembered;
    std::unique_ptr<Part>& part = (*last_ring_)[at / kPart];
    if (!part) part = std::make_unique<Part>();
    return (*part)[at % kPart];
  }

  std::map<std::uint64_t, Ring> rings_;
  std::uint64_t last_thread_ = 0;
  Ring* last_ring_ = nullptr;
};

}  // namespace alloctrace
