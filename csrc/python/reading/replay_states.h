// Class States of module _replay: memory before any event of a Replay, as tables.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_states(pybind11::module_& module);

}  // namespace alloctrace
