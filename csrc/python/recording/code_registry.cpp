#include "cpython_layout.h"
// Python.h comes first.
#include <pthread.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "code_registry.h"

namespace alloctrace::python {
namespace {

std::atomic<std::uint64_t> current_generation{1};

// The interpreter reports deaths on any thread that holds the GIL, while registries are made and destroyed without it.
// A report counts itself in before it looks for the registry; a registry takes itself away before it looks whether a
// report is under way.
std::atomic<CodeRegistry*> watching_registry{nullptr};
std::atomic<int> reports_running{0};

void report_death(const PyCodeObject* code) noexcept {
  reports_running.fetch_add(1);
  if (CodeRegistry* const registry = watching_registry.load()) registry->forget(code);
  reports_running.fetch_sub(1);
}

#if PY_VERSION_HEX >= 0x030C0000
int report_code_event(PyCodeEvent event, PyCodeObject* code) {
  if (event == PY_CODE_EVENT_DESTROY) report_death(code);
  return 0;
}
#endif

// Where the interpreter has no watchers for code objects (3.10, 3.11) or none to spare. Comparing the objects that code
// objects consist of is not enough: where a program makes one function after another, their names, constants and line
// tables come back at the same addresses too, and now and then one stack was taken for another.
destructor dealloc_of_code = nullptr;

void report_and_dealloc(PyObject* code) {
  report_death(reinterpret_cast<PyCodeObject*>(code));
  dealloc_of_code(code);
}

// The parent's session does not live on in a forked child, and another thread of the parent may have held its lock:
// without this the first code object that dies in the child could wait for ever.
void abandon_registry_in_child() {
  watching_registry.store(nullptr);
  reports_running.store(0);
}

#if ALLOCTRACE_KNOWN_LAYOUT

void append_utf8(std::string& out, std::uint32_t character) {
  if (character < 0x80) {
    out += static_cast<char>(character);
    return;
  }
  // File names that are not UTF-8 have surrogates here; no reader of UTF-8 would take them.
  if (character >= 0xD800 && character < 0xE000) {
    out += '?';
    return;
  }
  const auto continuation = [&](int shift) { out += static_cast<char>(0x80 | (character >> shift & 0x3F)); };
  if (character < 0x800) {
    out += static_cast<char>(0xC0 | character >> 6);
  } else if (character < 0x10000) {
    out += static_cast<char>(0xE0 | character >> 12);
    continuation(6);
  } else {
    out += static_cast<char>(0xF0 | character >> 18);
    continuation(12);
    continuation(6);
  }
  continuation(0);
}

// PyUnicode_AsUTF8 would need the GIL: it keeps its result in the string object.
std::string read_text(PyObject* text) {
  std::string out;
  if (text == nullptr) return out;
#if PY_VERSION_HEX < 0x030C0000
  if (!PyUnicode_IS_READY(text)) return "?";  // made by an API that 3.12 removed
#endif
  const auto length = static_cast<std::size_t>(PyUnicode_GET_LENGTH(text));
  const auto kind = PyUnicode_KIND(text);
  const void* const data = PyUnicode_DATA(text);
  out.reserve(length);
  for (std::size_t i = 0; i < length; ++i) {
    append_utf8(out, PyUnicode_READ(kind, data, i));
  }
  return out;
}

#endif  // ALLOCTRACE_KNOWN_LAYOUT

}  // namespace

std::uint64_t generation() noexcept { return current_generation.load(std::memory_order_acquire); }
std::uint64_t next_generation() noexcept { return current_generation.fetch_add(1, std::memory_order_acq_rel) + 1; }

void watch_code_deaths() {
  static bool watching = false;
  if (watching) return;
  watching = true;
  pthread_atfork(nullptr, nullptr, abandon_registry_in_child);
#if PY_VERSION_HEX >= 0x030C0000
  // A watcher sees the interpreter that it was added in, and stacks are taken in the main one.
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
    if (PyCode_AddWatcher(report_code_event) >= 0) return;
    PyErr_Clear();  // all eight are taken
  }
#endif
  dealloc_of_code = PyCode_Type.tp_dealloc;
  PyCode_Type.tp_dealloc = report_and_dealloc;
}

CodeRegistry::CodeRegistry(StackTable& table) : table_(table) {
  next_generation();
  watching_registry.store(this);
}

CodeRegistry::~CodeRegistry() {
  CodeRegistry* self = this;
  watching_registry.compare_exchange_strong(self, nullptr);
  while (reports_running.load() != 0) std::this_thread::yield();
}

std::uint32_t CodeRegistry::code_id(PyCodeObject* code) {
#if ALLOCTRACE_KNOWN_LAYOUT
  const std::lock_guard<std::mutex> guard(mutex_);
  if (const auto known = ids_.find(code); known != ids_.end()) return known->second;

  const std::string name = read_text(code->co_name);
  const std::string qualified = read_text(qualified_name(code));
  const std::string filename = read_text(code->co_filename);
  CodeDescription description;
  description.name = name;
  description.qualified_name = qualified;
  description.filename = filename;
  description.first_line = code->co_firstlineno;
  description.line_table_kind = PY_VERSION_HEX >= 0x030B0000 ? LineTableKind::kPython311 : LineTableKind::kPython310;
  description.line_table = {PyBytes_AS_STRING(code->co_linetable),
                            static_cast<std::size_t>(PyBytes_GET_SIZE(code->co_linetable))};
  const std::uint32_t id = table_.add_code(description);
  if (id != 0) ids_.emplace(code, id);
  return id;
#else
  (void)code;
  return 0;
#endif
}

std::uint32_t CodeRegistry::code_id(const CodeDescription& description) {
  std::string contents = std::to_string(description.first_line);
  for (const std::string_view field :
       {description.filename, description.name, description.qualified_name, description.line_table}) {
    contents += ' ' + std::to_string(field.size()) + ' ';  // so that nothing can move from one field to the next
    contents += field;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  if (const auto known = ids_by_contents_.find(contents); known != ids_by_contents_.end()) return known->second;
  const std::uint32_t id = table_.add_code(description);
  if (id != 0) ids_by_contents_.emplace(std::move(contents), id);
  return id;
}

void CodeRegistry::forget(const PyCodeObject* code) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (ids_.erase(code) != 0) next_generation();
}

}  // namespace alloctrace::python
