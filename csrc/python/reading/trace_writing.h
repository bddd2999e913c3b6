// Class TraceWriter of module _replay: writes traces from recordings of other tools.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_trace_writing(pybind11::module_& module);

}  // namespace alloctrace
