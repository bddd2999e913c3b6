// Module pytorch_alloctrace._replay: reads traces into numpy arrays, without torch or a GPU.
#include <pybind11/pybind11.h>

#include <exception>

#include "../../core/compaction/compacted_trace.h"
#include "../../core/reading/finish_trace.h"
#include "../../core/reading/trace_reader.h"
#include "../../core/replay/replay_run.h"
#include "bindings.h"

namespace py = pybind11;

namespace alloctrace {
namespace {

void define_errors(py::module_& module) {
  define_trace_error<FormatError>(module, "FormatError");
  define_trace_error<OpenError>(module, "OpenError");
  define_trace_error<FinishError>(module, "FinishError");
  define_trace_error<CompactionError>(module, "CompactionError");
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const CompactedError& error) {
      const py::object type = py::module_::import("pytorch_alloctrace.errors").attr("CompactedError");
      PyErr_SetString(type.ptr(), error.what());
    }
  });
}

}  // namespace

PYBIND11_MODULE(_replay, module) {
  module.doc() = "Reads traces: decoding, integrity, and the replay.";
  define_errors(module);
  define_allocator_settings(module);
  define_trace_reading(module);
  define_event_stream(module);
  define_replay(module);
  define_states(module);
  define_following(module);
  define_plain_pickle(module);
  define_trace_writing(module);
  define_what_if(module);
}

}  // namespace alloctrace
