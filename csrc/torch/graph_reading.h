// Safe reads of autograd graphs from Python while other threads may run backward on them.
// torch's own getters corrupt the program's memory if another thread
// - runs backward, which frees a node's saved tensors and writes a leaf's gradient without the GIL, under the node's
//   lock, which the getters do not take;
// - executes `p.grad = None`, or frees tensors saved by a node written in Python: torch drops the GIL while it frees a
//   tensor, and until then the pointer remains. No lock guards this. So gradients and such nodes are not read while a
//   thread is in backward, or another thread has called, at any depth, code that mentions `grad`. Not detected: a
//   setter that gets the name from elsewhere, a backward begun by a C++ extension, a gradient's weakref callback that
//   itself starts a scan.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace alloctrace::torch_side {

// Return the nodes and tensors that a node's getters return, or nullopt if another thread may be changing the node.
// Omit tensors saved through a hook, which is code of the program. getters: of next_functions, variable or
// _raw_saved_*; saved_type: torch's SavedTensor. Call with the GIL.
std::optional<pybind11::list> graph_referents(pybind11::handle node, const pybind11::tuple& getters,
                                              pybind11::handle saved_type);

// Return a list of the tensor's gradient, if any, or nullopt if another thread may be changing it. Call with the GIL.
std::optional<pybind11::list> gradient_of(pybind11::handle tensor);

}  // namespace alloctrace::torch_side
