#include "cpython_layout.h"
// Python.h comes first.
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "code_registry.h"
#include "module_registry.h"

namespace alloctrace::python {
namespace {

// Maximum number of failed lookups of a class; from then on only sightings 32, 64, 128, ... are looked up. Lookups fail
// for modules that are destroyed or unowned by then: a program may create one at each step.
constexpr std::uint64_t kMaxFailures = 16;
constexpr std::size_t kMaxSightings = 256;  // waiting for lookup

std::string_view class_name_of(const PyObject* module) {
  // Valid without the GIL: the frame owns the module, the module its type, the type its name.
  const std::string_view name = Py_TYPE(module)->tp_name;
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

std::uint32_t ModuleRegistry::module_id(PyObject* module, const void* frame, bool& waits_for_name) {
  const std::string_view class_name = class_name_of(module);
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto entry = entries_.find(module);
  if (entry != entries_.end() && entry->second.is_bound) return entry->second.id;
  auto class_entry = classes_.find(std::string(class_name));
  if (class_entry == classes_.end()) class_entry = classes_.emplace(class_name, Class{}).first;
  Class& type = class_entry->second;
  if (entry != entries_.end() && entry->second.type == &type) {
    waits_for_name = true;
    return entry->second.id;
  }
  // A module called by a module that waits for its name is probably a submodule: one lookup names both.
  if (!waits_for_name) ++type.sightings;
  const bool is_looked_up = waits_for_name || type.sightings <= kMaxFailures || std::has_single_bit(type.sightings);
  if (!is_looked_up || sightings_.size() >= kMaxSightings) {
    if (type.id == 0) type.id = table_.add_module(class_name);
    return type.id;
  }
  const std::uint32_t id = table_.add_module(class_name);
  if (id == 0) return 0;
  entries_[module] = {id, false, &type};
  sightings_.push_back({module, frame, static_cast<unsigned long>(pthread_self()), id});
  waits_for_name = true;
  request_lookup_();
  return id;
}

std::vector<ModuleRegistry::Sighting> ModuleRegistry::consume_sightings(unsigned long thread, bool is_excluded) {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::vector<Sighting> consumed;
  std::vector<Sighting> remaining;
  for (const Sighting& sighting : sightings_) {
    ((sighting.thread == thread) != is_excluded ? consumed : remaining).push_back(sighting);
  }
  sightings_ = std::move(remaining);
  return consumed;
}

void ModuleRegistry::close(const std::vector<Sighting>& sightings) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const Sighting& sighting : sightings) {
    const auto entry = entries_.find(sighting.module);
    if (entry == entries_.end()) continue;
    if (entry->second.is_bound) {
      if (entry->second.type && entry->second.type->sightings > 0) --entry->second.type->sightings;
    } else if (entry->second.id == sighting.id) {
      entries_.erase(entry);
    }
  }
  // Cached stacks of threads may contain a bound module's former id, or that of a destroyed module at its address.
  if (std::exchange(bound_since_close_, false)) next_generation();
}

std::uint32_t ModuleRegistry::name(std::uint32_t id, std::string_view class_name, std::uint32_t owner,
                                   std::string_view name) {
  if (id == 0) return table_.add_module(class_name, owner, name);
  return table_.name_module(id, class_name, owner, name) ? id : 0;
}

void ModuleRegistry::bind(const void* module, std::uint32_t id) {
  const std::lock_guard<std::mutex> guard(mutex_);
  Entry& bound = entries_[module];
  bound.id = id;
  bound.is_bound = true;
  bound_since_close_ = true;
}

void ModuleRegistry::forget(const void* module) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto entry = entries_.find(module);
  if (entry == entries_.end()) return;
  if (entry->second.type) ++entry->second.type->sightings;
  entries_.erase(entry);
  next_generation();
}

}  // namespace alloctrace::python
