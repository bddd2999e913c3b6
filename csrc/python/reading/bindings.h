// The parts of module _replay, one function each.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_following(pybind11::module_& module);      // class Following: reads a recording while the program runs
void define_plain_pickle(pybind11::module_& module);   // load_plain_pickle(), PlainPickleError
void define_replay(pybind11::module_& module);         // class Replay: results over the complete trace
void define_states(pybind11::module_& module);         // class States: memory before any event of a Replay
void define_trace_writing(pybind11::module_& module);  // class TraceWriter: traces from recordings of other tools
void define_what_if(pybind11::module_& module);        // simulations of torch's allocator

}  // namespace alloctrace
