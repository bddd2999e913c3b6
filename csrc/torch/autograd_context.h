// Autograd's state on this thread: links an allocation of backward to the line of forward that caused it.
#pragma once

#include <cstdint>

#include "../python/recording/session.h"

namespace alloctrace::torch_side {

// Return autograd's id of this thread, which nodes store as the thread that created them.
std::uint64_t autograd_thread_id() noexcept;

// Return whether this thread executes a node of a backward pass.
bool is_in_backward() noexcept;

// Fields of an event that autograd determines.
struct AutogradContext {
  std::uint64_t sequence = 0, node_sequence = 0;
  std::uint32_t node_thread = 0;
  std::uint16_t node_type = 0;
};
AutogradContext read_autograd_context(python::Session& session, python::ThreadContext& thread);

}  // namespace alloctrace::torch_side
