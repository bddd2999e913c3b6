// Class Following: reads a recording while the program runs.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_following(pybind11::module_& module);

}  // namespace alloctrace
