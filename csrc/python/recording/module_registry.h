// Map from live instances of torch.nn.Module to the module ids of a trace.
//
// A hook can read only a module's address and class. The name is looked up soon afterwards, with the GIL
// (module_names.h); until then, and if it is not found, the id means "an instance of this class". So a module that is
// destroyed early and another one at its address never get each other's name.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../../core/recording/stack_table.h"

typedef struct _object PyObject;

namespace alloctrace::python {

// Module ids of one session.
//
// Contract between hooks and the threads that look up names:
// - Any thread may call module_id(), without the GIL, while a frame owns the module. The callers of close(), bind() and
//   forget() hold the GIL. Under the mutex a thread takes only the StackTable's locks and never the GIL.
// - An id is returned only after its definition is in the log. A module that could not be stored gets no entry.
// - If the list of sightings is full, a further one is discarded: that call gets the id shared by the class. Stored
//   sightings are not discarded; each is consumed once, in the order in which they were stored.
// - Cached stacks keep a module's former id until close() starts a generation, after bind(). forget() starts one at
//   once: a new module at the address gets an id of its own.
class ModuleRegistry {
 public:
  // First occurrence of an unnamed module in a frame of a thread, with the module's own id.
  struct Sighting {
    const void* module;
    const void* frame;
    unsigned long thread;  // threading.get_ident()
    std::uint32_t id;
  };

  // request_lookup: called in a hook after a sighting.
  ModuleRegistry(StackTable& table, void (*request_lookup)() noexcept)
      : table_(table), request_lookup_(request_lookup) {}
  ModuleRegistry(const ModuleRegistry&) = delete;
  ModuleRegistry& operator=(const ModuleRegistry&) = delete;

  // Return the id of the module that a frame of the calling thread calls; 0 if not stored. waits_for_name: whether an
  // outer module in the stack waits for its name; set if this module does. Needs no GIL. Throws std::bad_alloc.
  std::uint32_t module_id(PyObject* module, const void* frame, bool& waits_for_name);

  // Return and drop the sightings of `thread`, or of all other threads if it is excluded.
  std::vector<Sighting> consume_sightings(unsigned long thread, bool is_excluded);
  // Drop modules of consumed sightings that were not bound: their next call is a new sighting.
  void close(const std::vector<Sighting>& sightings);

  // Set the fields of a module (see ModuleRecord); id 0: a new module. Return its id, 0 if it could not be stored.
  std::uint32_t name(std::uint32_t id, std::string_view class_name, std::uint32_t owner, std::string_view name);
  // Give the live module at this address this id until forget(), which the caller must call when it is destroyed.
  void bind(const void* module, std::uint32_t id);
  void forget(const void* module) noexcept;

 private:
  // State of a class's modules that are not bound.
  struct Class {
    std::uint32_t id = 0;  // shared by modules without an id of their own
    std::uint64_t sightings = 0;
  };
  struct Entry {
    std::uint32_t id = 0;
    bool is_bound = false;
    Class* type = nullptr;  // nullptr: bound without a sighting
  };

  StackTable& table_;
  void (*const request_lookup_)() noexcept;
  std::mutex mutex_;
  std::unordered_map<const void*, Entry> entries_;
  std::unordered_map<std::string, Class> classes_;
  std::vector<Sighting> sightings_;
  bool bound_since_close_ = false;
};

}  // namespace alloctrace::python
