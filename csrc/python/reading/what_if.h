// What torch's allocator would have done under other settings and on other cards: core/what_if, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_what_if(pybind11::module_& module);

}  // namespace alloctrace
