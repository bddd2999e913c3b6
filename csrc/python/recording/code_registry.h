// Map from live code objects to the code ids of a trace; destroyed ones are removed, since addresses are reused.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "../../core/recording/stack_table.h"

struct PyCodeObject;

namespace alloctrace::python {

// Start to report destroyed code objects to the registry. Called at import, with the GIL; may be called again.
void watch_destroyed_code();

// Return the current or start the next generation. Stacks cached in an older one may name destroyed code or modules.
std::uint64_t generation() noexcept;
std::uint64_t next_generation() noexcept;

// Code ids of one recording session. Only one registry exists at a time.
//
// Contract between hooks and the threads that destroy code objects:
// - Any thread may call code_id(), without the GIL. The code object must be live, as that of a running frame is.
// - The mutex covers a lookup, or the definition of one code object in the StackTable. No thread waits for the GIL
//   while it holds the mutex.
// - An id is stored, and returned, only after its definition is in the log. A code object that could not be stored gets
//   no entry: the next call tries again.
// - forget() is called before the object's memory is freed. It removes the entry, then starts a generation: a new code
//   object at the address gets an id of its own, and stacks cached before are not used for it.
// - The destructor waits for running calls of forget() by the interpreter; hooks must have ended before.
class CodeRegistry {
 public:
  explicit CodeRegistry(StackTable& table);
  ~CodeRegistry();
  CodeRegistry(const CodeRegistry&) = delete;
  CodeRegistry& operator=(const CodeRegistry&) = delete;

  // Return the id of a live code object, as of a frame; 0 if it could not be stored. Needs no GIL. Throws bad_alloc.
  std::uint32_t code_id(PyCodeObject* code);

  // Return the id of a code object given by its contents. A session uses only one of the two overloads.
  std::uint32_t code_id(const CodeDescription& description);

  // Remove a code object that is being destroyed: another may be created at its address.
  void forget(const PyCodeObject* code) noexcept;

  StackTable& table() { return table_; }

 private:
  StackTable& table_;
  std::mutex mutex_;
  std::unordered_map<const PyCodeObject*, std::uint32_t> ids_;  // of live code objects
  std::unordered_map<std::string, std::uint32_t> ids_by_contents_;
};

}  // namespace alloctrace::python
