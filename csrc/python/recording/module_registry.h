// Maps live instances of torch.nn.Module to the module ids of a trace.
//
// A hook meets a module in a stack and knows its address and its class. Whose it is can only be asked with the GIL,
// soon afterwards (module_names.h); until then, and where it cannot be known, the id stands for "one of this class". So
// a module that dies early, and another one at its address, never get each other's name.
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

// One for each recording session; thread-safe. Its lock is a leaf but for those of the StackTable, and nobody holds it
// while waiting for the GIL.
class ModuleRegistry {
 public:
  // A module without a name was met in a frame of this thread, and has this id of its own.
  struct Sighting {
    const void* module;
    const void* frame;
    unsigned long thread;  // threading.get_ident()
    std::uint32_t id;
  };

  // wanted: called in a hook after a sighting.
  ModuleRegistry(StackTable& table, void (*wanted)() noexcept) : table_(table), wanted_(wanted) {}
  ModuleRegistry(const ModuleRegistry&) = delete;
  ModuleRegistry& operator=(const ModuleRegistry&) = delete;

  // Id of the module that a frame of the calling thread calls; the GIL is not needed. waits_for_name: whether a module
  // further out in the stack does; set if this one does. 0 when the definition could not be stored. Throws
  // std::bad_alloc.
  std::uint32_t module_id(PyObject* module, const void* frame, bool& waits_for_name);

  // Those since the last call: of one thread, or of all but one.
  std::vector<Sighting> take_sightings(unsigned long thread, bool but_this_one);
  // Ends what take_sightings began: those that were not bound in between are met anew next time. With the GIL, like the
  // following.
  void close(const std::vector<Sighting>& sightings);

  // Says what is known of a module; id 0: of a new one. See ModuleRecord. Returns its id, 0 if it could not be stored.
  std::uint32_t name(std::uint32_t id, std::string_view class_name, std::uint32_t owner, std::string_view name);
  // The live module at this address has this id from now on, until forget(): whoever calls sees its death.
  void bind(const void* module, std::uint32_t id);
  void forget(const void* module) noexcept;

 private:
  // Of modules that are not bound.
  struct Class {
    std::uint32_t id = 0;  // of all those that got none of their own
    std::uint64_t sightings = 0;
  };
  struct Known {
    std::uint32_t id = 0;
    bool is_bound = false;
    Class* seen_as = nullptr;  // not bound, or met before it was
  };

  StackTable& table_;
  void (*const wanted_)() noexcept;
  std::mutex mutex_;
  std::unordered_map<const void*, Known> known_;
  std::unordered_map<std::string, Class> classes_;
  std::vector<Sighting> sightings_;
  bool has_bound_ = false;  // since the last close()
};

}  // namespace alloctrace::python
