// Where autograd stands on this thread: what ties an allocation of backward to the line of forward that caused it.
#pragma once

#include <cstdint>

#include "../python/recording/session.h"

namespace alloctrace::torch_side {

// The number by which autograd knows this thread (nodes remember which thread made them).
std::uint64_t autograd_thread_id() noexcept;

// The fields of an event.
struct AutogradPoint {
  std::uint64_t sequence = 0, node_sequence = 0;
  std::uint32_t node_thread = 0;
  std::uint16_t node_type = 0;
};
AutogradPoint autograd_point(python::Session& session, python::ThreadContext& thread);

}  // namespace alloctrace::torch_side
