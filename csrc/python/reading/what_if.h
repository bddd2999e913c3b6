// Python interface of core/what_if: simulations of torch's allocator with other settings and GPUs.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_what_if(pybind11::module_& module);

}  // namespace alloctrace
