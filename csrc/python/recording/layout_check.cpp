#include <cstring>
#include <string>
#include <string_view>

#include "cpython_layout.h"
#include "frame_walk.h"
#include "python_reference.h"

#if ALLOCTRACE_KNOWN_LAYOUT && PY_VERSION_HEX >= 0x030D0000
extern "C" const alloctrace::python::DebugOffsets _PyRuntime;
#endif

namespace alloctrace::python {
namespace {

#if ALLOCTRACE_KNOWN_LAYOUT

// Each check returns a description of the difference, or an empty string.

std::string compare_versions() {
  const std::string built_for = std::to_string(PY_MAJOR_VERSION) + "." + std::to_string(PY_MINOR_VERSION) + ".";
  return std::string_view(Py_GetVersion()).substr(0, built_for.size()) == built_for
             ? ""
             : "it was built for Python " + built_for + "x";
}

// Compare offsets. Called before any frame is read, since a read with a wrong offset may crash.
std::string compare_debug_offsets() {
#if PY_VERSION_HEX >= 0x030D0000
  const DebugOffsets& info = _PyRuntime;
  if (std::memcmp(info.cookie, "xdebugpy", sizeof info.cookie) != 0)
    return "the interpreter's own offsets are not found";
  if (info.version >> 16 != PY_VERSION_HEX >> 16 || info.free_threaded != 0) return "another kind of interpreter runs";
  const struct {
    const char* field;
    std::uint64_t reported;
    std::size_t compiled;
  } offsets[] = {
      {"PyThreadState.interp", info.thread_state.interp, offsetof(PyThreadState, interp)},
      {"PyThreadState.current_frame", info.thread_state.current_frame, offsetof(PyThreadState, current_frame)},
      {"_PyInterpreterFrame.previous", info.frame.previous, offsetof(Frame, previous)},
      {"_PyInterpreterFrame.f_executable", info.frame.executable, offsetof(Frame, executable)},
      {"_PyInterpreterFrame.instr_ptr", info.frame.instr_ptr, offsetof(Frame, instruction)},
      {"_PyInterpreterFrame.owner", info.frame.owner, offsetof(Frame, owner)},
      {"PyCodeObject.co_filename", info.code.filename, offsetof(PyCodeObject, co_filename)},
      {"PyCodeObject.co_name", info.code.name, offsetof(PyCodeObject, co_name)},
      {"PyCodeObject.co_qualname", info.code.qualname, offsetof(PyCodeObject, co_qualname)},
      {"PyCodeObject.co_linetable", info.code.linetable, offsetof(PyCodeObject, co_linetable)},
      {"PyCodeObject.co_firstlineno", info.code.firstlineno, offsetof(PyCodeObject, co_firstlineno)},
      {"PyCodeObject.co_code_adaptive", info.code.co_code_adaptive, offsetof(PyCodeObject, co_code_adaptive)},
  };
  for (const auto& offset : offsets) {
    if (offset.reported != offset.compiled) return std::string("the location of ") + offset.field;
  }
#endif
  return "";
}

bool attribute_is(PyObject* object, const char* name, const PyObject* expected) {
  const Reference value(PyObject_GetAttrString(object, name));
  return value && value.get() == expected;
}

bool attribute_is(PyObject* object, const char* name, long expected) {
  const Reference value(PyObject_GetAttrString(object, name));
  return value && PyLong_AsLong(value.get()) == expected;
}

std::string compare_code(PyCodeObject* code) {
  PyObject* const object = reinterpret_cast<PyObject*>(code);
  const bool same =
      attribute_is(object, "co_name", code->co_name) && attribute_is(object, "co_filename", code->co_filename) &&
      attribute_is(object, "co_linetable", code->co_linetable) && attribute_is(object, "co_consts", code->co_consts) &&
      attribute_is(object, "co_firstlineno", static_cast<long>(code->co_firstlineno)) &&
      (qualified_name(code) == nullptr || attribute_is(object, "co_qualname", qualified_name(code)));
  return same ? "" : "the fields of code objects";
}

// Compare this thread's frames as read by this module with those of the public API.
std::string compare_stacks() {
  PyThreadState* const thread = PyGILState_GetThisThreadState();
  if (thread != PyThreadState_Get()) return "the thread's state";
  const Frame* frame = innermost_frame(thread);
  Reference expected(PyThreadState_GetFrame(thread));
  std::size_t compared = 0;
  while (true) {
    PyCodeObject* code = nullptr;
    while (frame != nullptr && (code = visible_code(frame)) == nullptr) frame = caller(frame);
    if (frame == nullptr || !expected) break;
    const Reference expected_code(PyFrame_GetCode(expected.as<PyFrameObject>()));
    if (expected_code.as<PyCodeObject>() != code) return "the code object of a frame";
    if (const std::string difference = compare_code(code); !difference.empty()) return difference;
    const auto instruction = static_cast<std::int32_t>(instruction_offset(frame, code));
    if (!attribute_is(expected.get(), "f_lasti", static_cast<long>(instruction))) {
      return "the instruction of a frame";
    }
    expected = Reference(PyFrame_GetBack(expected.as<PyFrameObject>()));
    frame = caller(frame);
    ++compared;
  }
  if (frame != nullptr || expected) return "the number of frames";
  return compared < 4 ? "the chain of frames" : "";
}

PyObject* compare_stacks_from_python(PyObject*, PyObject*) {
  try {
    const std::string difference = compare_stacks();
    PyErr_Clear();
    return PyUnicode_FromStringAndSize(difference.data(), static_cast<Py_ssize_t>(difference.size()));
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

// compare(first): return whether the caller's first argument is `first`.
PyObject* compare_first_argument(PyObject*, PyObject* expected) {
  const Frame* frame = innermost_frame(PyThreadState_Get());
  while (frame != nullptr && visible_code(frame) == nullptr) frame = caller(frame);
  return PyBool_FromLong(frame != nullptr && first_argument(frame) == expected);
}

// Program whose stack has the frames that differ most: a generator, a comprehension, an __init__, a call from C code.
constexpr const char* kProgram = R"(
class Called:
    def __init__(self, compare):
        self.difference = compare()
def generate(compare):
    yield Called(compare).difference
def outer(compare):
    return max(map(lambda item: [next(generate(compare)) for i in (0,)][0], (0,)))
difference = outer(compare)
)";

// Program that passes arguments as torch's modules do.
constexpr const char* kArgumentProgram = R"(
def call(first, *others, **named):
    return compare(first) and (not others or call(*others, name=first) and compare(first))
result = call(object(), (first for first in ()), 1000001, compare)
)";

// Run a program that calls `compare` and return its variable `name`; null if the program fails.
Reference run(const char* program, PyMethodDef* compare_definition, const char* name) {
  const Reference globals(PyDict_New());
  const Reference compare(PyCFunction_New(compare_definition, nullptr));
  Reference value;
  if (globals && compare && PyDict_SetItemString(globals.get(), "compare", compare.get()) == 0 &&
      PyDict_SetItemString(globals.get(), "__builtins__", PyEval_GetBuiltins()) == 0) {
    const Reference result(PyRun_String(program, Py_file_input, globals.get(), globals.get()));
    if (result) value = Reference(Py_XNewRef(PyDict_GetItemString(globals.get(), name)));
  }
  PyErr_Clear();
  return value;
}

std::string compare_in_python() {
  static PyMethodDef definition = {"compare", compare_stacks_from_python, METH_NOARGS, nullptr};
  const Reference value = run(kProgram, &definition, "difference");
  const char* const text = value ? PyUnicode_AsUTF8(value.get()) : nullptr;
  PyErr_Clear();
  return text ? text : "the check itself failed";
}

// Return whether first_argument() reads the right argument.
bool can_read_first_argument() {
#if PY_VERSION_HEX >= 0x030D0000
  if (_PyRuntime.frame.localsplus != offsetof(Frame, first_local)) return false;
#endif
  static PyMethodDef definition = {"compare", compare_first_argument, METH_O, nullptr};
  const Reference value = run(kArgumentProgram, &definition, "result");
  return value.get() == Py_True;
}

#endif  // ALLOCTRACE_KNOWN_LAYOUT

}  // namespace

std::string check_layout() {
#ifdef Py_GIL_DISABLED
  set_walk_mode(WalkMode::kNone);
  return "This is a free-threaded build of Python: allocations are recorded without Python stacks.";
#else
#if ALLOCTRACE_KNOWN_LAYOUT
  std::string difference = compare_versions();
  if (difference.empty()) difference = compare_debug_offsets();
  if (difference.empty()) difference = compare_in_python();
  if (difference.empty()) {
    allow_modules(can_read_first_argument());
    watch_destroyed_code();
    set_walk_mode(WalkMode::kDirect);
    return "";
  }
#else
  const std::string difference = "it is newer than 3.14";
#endif
  set_walk_mode(WalkMode::kPublicApi);
  return "The frames of this Python (" + std::string(Py_GetVersion()).substr(0, std::strcspn(Py_GetVersion(), " ")) +
         ") are not laid out as this module knows them (" + difference +
         "): Python stacks are recorded more slowly, and only on threads that hold the GIL.";
#endif
}

}  // namespace alloctrace::python
