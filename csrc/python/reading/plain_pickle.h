// Function load_plain_pickle() and PlainPickleError of module _replay: a reader for pickles of plain values.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_plain_pickle(pybind11::module_& module);

}  // namespace alloctrace
