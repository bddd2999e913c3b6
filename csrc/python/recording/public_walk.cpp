#include "public_walk.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "cpython_layout.h"
#include "frame_walk.h"
#include "python_reference.h"

namespace alloctrace::python {
namespace {

// Scope that preserves a pending exception: the hook must neither lose it nor add one.
class SavedException {
 public:
#if PY_VERSION_HEX >= 0x030C0000
  SavedException() : exception_(PyErr_GetRaisedException()) {}
  ~SavedException() { PyErr_SetRaisedException(exception_); }

 private:
  PyObject* exception_;
#else
  SavedException() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~SavedException() { PyErr_Restore(type_, value_, traceback_); }

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
#endif
 public:
  SavedException(const SavedException&) = delete;
  SavedException& operator=(const SavedException&) = delete;
};

// Scope without garbage collection: up to 3.11 a new frame object may start one and run finalizers in the allocator.
class CollectionPause {
 public:
  CollectionPause() : was_enabled_(PyGC_Disable() != 0) {}
  ~CollectionPause() {
    if (was_enabled_) PyGC_Enable();
  }
  CollectionPause(const CollectionPause&) = delete;
  CollectionPause& operator=(const CollectionPause&) = delete;

 private:
  bool was_enabled_;
};

std::optional<std::string> text_attribute(PyObject* object, const char* name) {
  const Reference text(PyObject_GetAttrString(object, name));
  if (!text || !PyUnicode_Check(text.get())) return std::nullopt;
  const Reference encoded(PyUnicode_AsEncodedString(text.get(), "utf-8", "replace"));  // '?' for surrogates
  if (!encoded) return std::nullopt;
  return std::string(PyBytes_AS_STRING(encoded.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(encoded.get())));
}

std::optional<long> integer_attribute(PyObject* object, const char* name) {
  const Reference number(PyObject_GetAttrString(object, name));
  if (!number) return std::nullopt;
  const long value = PyLong_AsLong(number.get());
  if (value == -1 && PyErr_Occurred()) return std::nullopt;
  return value;
}

std::uint32_t define_code(PyObject* code, CodeRegistry& registry) {
  const auto name = text_attribute(code, "co_name");
  const auto filename = text_attribute(code, "co_filename");
  const auto first_line = integer_attribute(code, "co_firstlineno");
  const Reference line_table(PyObject_GetAttrString(code, "co_linetable"));
  if (!name || !filename || !first_line || !line_table || !PyBytes_Check(line_table.get())) return 0;
  const auto qualified_name = text_attribute(code, "co_qualname");  // 3.11 and later
  PyErr_Clear();
  CodeDescription description;
  description.name = *name;
  if (qualified_name) description.qualified_name = *qualified_name;
  description.filename = *filename;
  description.first_line = static_cast<std::int32_t>(*first_line);
  description.line_table_kind = PY_VERSION_HEX >= 0x030B0000 ? LineTableKind::kPython311 : LineTableKind::kPython310;
  description.line_table = {PyBytes_AS_STRING(line_table.get()),
                            static_cast<std::size_t>(PyBytes_GET_SIZE(line_table.get()))};
  return registry.code_id(description);
}

}  // namespace

std::uint32_t current_stack_by_public_api(CodeRegistry& registry) noexcept {
  PyThreadState* const thread = PyGILState_GetThisThreadState();
  if (thread == nullptr || thread != thread_with_gil() || interpreter_is_finalizing()) return 0;
  const SavedException saved_exception;
  const CollectionPause collection_pause;
  try {
    std::vector<Reference> frames;  // innermost first
    for (Reference frame(PyThreadState_GetFrame(thread)); frame && frames.size() < kMaxDepth;) {
      Reference outer(PyFrame_GetBack(frame.as<PyFrameObject>()));
      frames.push_back(std::move(frame));
      frame = std::move(outer);
    }
    std::uint32_t stack = 0;
    for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
      const Reference code(PyFrame_GetCode(frame->as<PyFrameObject>()));
      const auto instruction = integer_attribute(frame->get(), "f_lasti");
      if (!instruction) return 0;
      const std::uint32_t code_id = define_code(code.get(), registry);
      const std::uint32_t inner =
          code_id == 0 ? 0 : registry.table().frame_id(stack, code_id, static_cast<std::uint32_t>(*instruction));
      if (inner == 0) return registry.table().is_full() ? stack | kStackIsTruncated : kStackNotStored;
      stack = inner;
    }
    return stack;
  } catch (...) {  // out of memory: the event has no stack
    return 0;
  }
}

}  // namespace alloctrace::python
