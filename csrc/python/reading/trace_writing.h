// Traces that are made of what other tools have recorded.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

// Adds the class TraceWriter to the module.
void define_trace_writing(pybind11::module_& module);

}  // namespace alloctrace
