#include "cpython_layout.h"
// Python.h comes first.
#include <pthread.h>

#include <string>
#include <thread>

#include "code_registry.h"

namespace alloctrace::python {
namespace {

std::atomic<std::uint64_t> current_generation{1};
std::atomic<CodeIdentity> identity{CodeIdentity::kFingerprint};

// The interpreter's reports come on any thread that holds the GIL, and registries come and go without it. A report counts itself in
// before it looks for the registry; a registry takes itself away before it looks who is in.
std::atomic<CodeRegistry*> watching_registry{nullptr};
std::atomic<int> reports_running{0};

#if PY_VERSION_HEX >= 0x030C0000 && ALLOCTRACE_KNOWN_LAYOUT
int report_code_event(PyCodeEvent event, PyCodeObject* code) {
  if (event != PY_CODE_EVENT_DESTROY) return 0;
  reports_running.fetch_add(1);
  if (CodeRegistry* const registry = watching_registry.load()) registry->forget(code);
  reports_running.fetch_sub(1);
  return 0;
}
#endif

// The parent's session does not live on in a forked child, and another thread of the parent may have held its lock: without this
// the first code object that dies in the child could wait for ever.
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
  if (!PyUnicode_IS_READY(text)) return "?";  // made by an API that died with 3.12
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

std::uint64_t hash_text(std::uint64_t hash, std::string_view text) {
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  return (hash ^ text.size()) * 0x9E3779B97F4A7C15u;  // so that no text can be moved from one field to the next
}

}  // namespace

CodeIdentity code_identity() noexcept { return identity.load(std::memory_order_relaxed); }
void stop_trusting_watches() noexcept { identity.store(CodeIdentity::kFingerprint, std::memory_order_relaxed); }

std::uint64_t generation() noexcept { return current_generation.load(std::memory_order_acquire); }
std::uint64_t next_generation() noexcept { return current_generation.fetch_add(1, std::memory_order_acq_rel) + 1; }

void watch_code_deaths() {
  static const bool fork_handler_registered = pthread_atfork(nullptr, nullptr, abandon_registry_in_child) == 0;
  (void)fork_handler_registered;
#if PY_VERSION_HEX >= 0x030C0000 && ALLOCTRACE_KNOWN_LAYOUT
  // Each interpreter has watchers of its own; stacks are taken in the main one.
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) return;
  static int watcher = -1;
  if (watcher < 0) watcher = PyCode_AddWatcher(report_code_event);
  if (watcher < 0) {  // all eight are taken
    PyErr_Clear();
    return;
  }
  identity.store(CodeIdentity::kWatched, std::memory_order_relaxed);
#endif
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
  const std::uint64_t key =
      code_identity() == CodeIdentity::kWatched ? reinterpret_cast<std::uint64_t>(code) : fingerprint(code);
  const std::lock_guard<std::mutex> guard(mutex_);
  if (const auto known = ids_.find(key); known != ids_.end()) return known->second;

  const std::string name = read_text(code->co_name);
  const std::string qualified = read_text(qualified_name(code));
  const std::string filename = read_text(code->co_filename);
  CodeDescription description;
  description.name = name;
  description.qualified_name = qualified;
  description.filename = filename;
  description.first_line = code->co_firstlineno;
  description.line_table_kind =
      PY_VERSION_HEX >= 0x030B0000 ? LineTableKind::kPython311 : LineTableKind::kPython310;
  description.line_table = {PyBytes_AS_STRING(code->co_linetable),
                            static_cast<std::size_t>(PyBytes_GET_SIZE(code->co_linetable))};
  const std::uint32_t id = table_.add_code(description);
  if (id != 0) ids_.emplace(key, id);
  return id;
#else
  (void)code;
  return 0;
#endif
}

std::uint32_t CodeRegistry::code_id(const CodeDescription& description) {
  std::uint64_t key = hash_text(0xCBF29CE484222325u, description.filename);
  key = hash_text(key, description.name);
  key = hash_text(key, description.qualified_name);
  key = hash_text(key ^ static_cast<std::uint32_t>(description.first_line), description.line_table);
  const std::lock_guard<std::mutex> guard(mutex_);
  if (const auto known = ids_.find(key); known != ids_.end()) return known->second;
  const std::uint32_t id = table_.add_code(description);
  if (id != 0) ids_.emplace(key, id);
  return id;
}

void CodeRegistry::forget(const PyCodeObject* code) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (ids_.erase(reinterpret_cast<std::uint64_t>(code)) != 0) next_generation();
}

}  // namespace alloctrace::python
