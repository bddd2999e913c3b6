// Where autograd stands on this thread: what ties an allocation of backward to the line of forward that caused it.
#pragma once

#include <cstdint>

#include "../core/format/event.h"
#include "../python/recording/session.h"

namespace alloctrace::torch_side {

// The number by which autograd knows this thread (nodes remember which thread made them).
std::uint64_t autograd_thread_id() noexcept;

// Fills sequence, node_sequence, node_thread and node_type of the event.
void fill_autograd_context(Event& event, python::Session& session, python::ThreadContext& thread);

}  // namespace alloctrace::torch_side
