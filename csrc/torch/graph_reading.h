// Reads of autograd graphs from Python while other threads may run backward on them.
//
// Backward releases what a node saved, and writes a leaf's gradient, without the GIL but under the node's lock. torch's
// getters do not take that lock: to call them during another thread's backward corrupts the program's memory.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace::torch_side {

// Call the getters of a node; return the nodes and tensors that they return. A tensor saved through a hook is left out,
// because a hook is code of the program. Return an empty list if another thread executes the node. getters: of
// attributes named next_functions, variable or _raw_saved_*; saved_type: torch's SavedTensor. With the GIL.
pybind11::list graph_referents(pybind11::handle node, const pybind11::tuple& getters, pybind11::handle saved_type);

// Return the gradient of a leaf; None if it has none, or if another thread accumulates it. With the GIL.
pybind11::object gradient_of_leaf(pybind11::handle tensor);

}  // namespace alloctrace::torch_side
