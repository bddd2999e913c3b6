// The class Following: a recording that runs, read as it goes on.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_following(pybind11::module_& module);

}  // namespace alloctrace
