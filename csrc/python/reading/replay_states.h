// The memory before any event, as tables, in the module _replay. Of a Replay: see replay_results.h.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_states(pybind11::module_& module);

}  // namespace alloctrace
