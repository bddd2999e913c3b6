// The parts of module _replay, one function each.
#pragma once

#include <pybind11/pybind11.h>

namespace alloctrace {

void define_allocator_settings(pybind11::module_& module);  // rules of torch's allocator
void define_event_stream(pybind11::module_& module);        // class EventStream: events of a trace in batches
void define_following(pybind11::module_& module);           // class Following: reads a recording while the program runs
void define_plain_pickle(pybind11::module_& module);        // load_plain_pickle(), PlainPickleError
void define_replay(pybind11::module_& module);              // class Replay: results over the complete trace
void define_states(pybind11::module_& module);              // class States: memory before any event of a Replay
void define_trace_reading(pybind11::module_& module);       // class TraceReader, finish_trace(), compact_trace()
void define_trace_writing(pybind11::module_& module);       // class TraceWriter: traces from recordings of other tools
void define_what_if(pybind11::module_& module);             // simulations of torch's allocator

// Define an exception of the module that users get as a subclass of TraceError.
template <typename Error>
void define_trace_error(pybind11::module_& module, const char* name) {
  const pybind11::object trace_error = pybind11::module_::import("pytorch_alloctrace.errors").attr("TraceError");
  pybind11::register_exception<Error>(module, name, trace_error);
}

}  // namespace alloctrace
