// Class Replay of module _replay: results over the complete trace.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_replay(pybind11::module_& module);

}  // namespace alloctrace
