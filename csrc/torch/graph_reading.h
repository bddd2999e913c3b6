// Reads of autograd graphs from Python while other threads may run backward on them.
//
// torch's own getters corrupt the program's memory if another thread
// - runs backward, which releases what a node saved and writes a leaf's gradient without the GIL, but under the node's
//   lock, which the getters do not take;
// - executes `p.grad = None`, or releases what a node written in Python saved: torch drops the GIL while it frees a
//   tensor, and until then the pointer to it remains. No lock guards this. So gradients and such nodes are not read
//   while a thread is in backward, or another thread has called, at any depth, code in which `grad` occurs.
//   Not seen are a setter that takes the name from elsewhere, a backward that a C++ extension begins, and a weakref
//   callback of a gradient that itself asks for a scan.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace alloctrace::torch_side {

// Call the getters of a node; return the nodes and tensors that they return. A tensor saved through a hook is left out,
// because a hook is code of the program. Return nothing if another thread may be changing the node. getters: of
// attributes named next_functions, variable or _raw_saved_*; saved_type: torch's SavedTensor. With the GIL.
std::optional<pybind11::list> graph_referents(pybind11::handle node, const pybind11::tuple& getters,
                                              pybind11::handle saved_type);

// Return a list of the gradient of a tensor, empty if it has none. Return nothing if another thread may be changing it.
// With the GIL.
std::optional<pybind11::list> gradient_of(pybind11::handle tensor);

}  // namespace alloctrace::torch_side
