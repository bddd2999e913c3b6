// What a replay found, over the whole trace, in the module _replay.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_replay(pybind11::module_& module);

}  // namespace alloctrace
