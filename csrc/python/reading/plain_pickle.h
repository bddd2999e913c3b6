// Reads pickles of plain values.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

// Adds load_plain_pickle() and its error to the module.
void define_plain_pickle(pybind11::module_& module);

}  // namespace alloctrace
