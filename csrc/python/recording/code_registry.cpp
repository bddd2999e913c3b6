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

// A report, on a thread with the GIL, increments reports_running, then loads watching_registry. ~CodeRegistry, on
// another thread, clears watching_registry, then waits for reports_running: no report uses a freed registry.
std::atomic<CodeRegistry*> watching_registry{nullptr};
std::atomic<int> reports_running{0};

void report_destroyed_code(const PyCodeObject* code) noexcept {
  reports_running.fetch_add(1);
  if (CodeRegistry* const registry = watching_registry.load()) registry->forget(code);
  reports_running.fetch_sub(1);
}

#if PY_VERSION_HEX >= 0x030C0000
int report_code_event(PyCodeEvent event, PyCodeObject* code) {
  if (event == PY_CODE_EVENT_DESTROY) report_destroyed_code(code);
  return 0;
}
#endif

// Fallback without code watchers (3.10, 3.11) or without a free one. Comparing the addresses of code objects' parts is
// not enough: functions created in turn reuse these addresses, and events then got the stack of an earlier function.
destructor original_deallocator = nullptr;

void report_and_deallocate(PyObject* code) {
  report_destroyed_code(reinterpret_cast<PyCodeObject*>(code));
  original_deallocator(code);
}

// Without this, destroying a code object in a forked child could block for ever on a lock held by a parent's thread.
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
  // Python stores undecodable bytes of a file name as surrogates, which UTF-8 decoders reject.
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

// Return `text` as UTF-8. PyUnicode_AsUTF8 would need the GIL, since it caches its result in the string object.
std::string read_text(PyObject* text) {
  std::string out;
  if (text == nullptr) return out;
#if PY_VERSION_HEX < 0x030C0000
  if (!PyUnicode_IS_READY(text)) return "?";  // created with an API that 3.12 removed
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

void watch_destroyed_code() {
  static bool watching = false;
  if (watching) return;
  watching = true;
  pthread_atfork(nullptr, nullptr, abandon_registry_in_child);
#if PY_VERSION_HEX >= 0x030C0000
  // A watcher covers only the interpreter in which it was added; stacks are recorded in the main interpreter.
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
    if (PyCode_AddWatcher(report_code_event) >= 0) return;
    PyErr_Clear();  // all eight watchers are in use
  }
#endif
  original_deallocator = PyCode_Type.tp_dealloc;
  PyCode_Type.tp_dealloc = report_and_deallocate;
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
  if (const auto entry = ids_.find(code); entry != ids_.end()) return entry->second;

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
    contents += ' ' + std::to_string(field.size()) + ' ';  // the size tells "ab", "c" from "a", "bc"
    contents += field;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  if (const auto entry = ids_by_contents_.find(contents); entry != ids_by_contents_.end()) return entry->second;
  const std::uint32_t id = table_.add_code(description);
  if (id != 0) ids_by_contents_.emplace(std::move(contents), id);
  return id;
}

void CodeRegistry::forget(const PyCodeObject* code) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (ids_.erase(code) != 0) next_generation();
}

}  // namespace alloctrace::python
