// Maps live code objects to the code ids of a trace, although code objects die and others are born at their addresses.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "../../core/recording/stack_table.h"

struct PyCodeObject;

namespace alloctrace::python {

// Called at import, with the GIL: from then on every death of a code object is seen. May be called again; raises
// nothing.
void watch_code_deaths();

// What was remembered about stacks under an older generation is void. It changes when a session starts, and when a code
// object that a session knows dies.
std::uint64_t generation() noexcept;
std::uint64_t next_generation() noexcept;

// One for each recording session, one at a time; thread-safe. Its lock is held for a lookup, or while one code object
// is defined in the StackTable, and nobody holds it while waiting for the GIL.
class CodeRegistry {
 public:
  explicit CodeRegistry(StackTable& table);
  ~CodeRegistry();
  CodeRegistry(const CodeRegistry&) = delete;
  CodeRegistry& operator=(const CodeRegistry&) = delete;

  // Id of a live code object, such as those on the calling thread's stack; the GIL is not needed. 0 when its definition
  // could not be stored. Throws std::bad_alloc.
  std::uint32_t code_id(PyCodeObject* code);

  // The same for one that is known by its contents only. A session uses this or the other, never both.
  std::uint32_t code_id(const CodeDescription& description);

  // The code object dies: whatever is at its address later is another one.
  void forget(const PyCodeObject* code) noexcept;

  StackTable& table() { return table_; }

 private:
  StackTable& table_;
  std::mutex mutex_;
  std::unordered_map<const PyCodeObject*, std::uint32_t> ids_;      // of live code objects
  std::unordered_map<std::string, std::uint32_t> ids_by_contents_;  // of those known by their contents
};

}  // namespace alloctrace::python
