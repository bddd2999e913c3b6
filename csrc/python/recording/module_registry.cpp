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

// So many modules of one class are asked about that were gone by then, or that nobody holds: a program may make one at
// each step, or in each forward. Later ones share an id; only each sighting that is twice as late is asked about.
constexpr std::uint64_t kAskedAbout = 16;
constexpr std::size_t kMostWaiting = 256;

std::string_view class_name_of(const PyObject* module) {
  // The frame owns the module, the module its type, the type its name.
  const std::string_view name = Py_TYPE(module)->tp_name;
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

std::uint32_t ModuleRegistry::module_id(PyObject* module, const void* frame, bool& waits_for_name) {
  const std::string_view class_name = class_name_of(module);
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = known_.find(module);
  if (found != known_.end() && found->second.is_bound) return found->second.id;
  auto entry = classes_.find(std::string(class_name));
  if (entry == classes_.end()) entry = classes_.emplace(class_name, Class{}).first;
  Class& kind = entry->second;
  if (found != known_.end() && found->second.seen_as == &kind) {
    waits_for_name = true;
    return found->second.id;
  }
  // What is inside a module that waits is most likely its own: then it is named together with it.
  if (!waits_for_name) ++kind.sightings;
  const bool is_asked_about = waits_for_name || kind.sightings <= kAskedAbout || std::has_single_bit(kind.sightings);
  if (!is_asked_about || sightings_.size() >= kMostWaiting) {
    if (kind.id == 0) kind.id = table_.add_module(class_name);
    return kind.id;
  }
  const std::uint32_t id = table_.add_module(class_name);
  if (id == 0) return 0;
  known_[module] = {id, false, &kind};
  sightings_.push_back({module, frame, static_cast<unsigned long>(pthread_self()), id});
  waits_for_name = true;
  wanted_();
  return id;
}

std::vector<ModuleRegistry::Sighting> ModuleRegistry::take_sightings(unsigned long thread, bool but_this_one) {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::vector<Sighting> taken;
  std::vector<Sighting> left;
  for (const Sighting& sighting : sightings_) {
    ((sighting.thread == thread) != but_this_one ? taken : left).push_back(sighting);
  }
  sightings_ = std::move(left);
  return taken;
}

void ModuleRegistry::close(const std::vector<Sighting>& sightings) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const Sighting& sighting : sightings) {
    const auto found = known_.find(sighting.module);
    if (found == known_.end()) continue;
    if (found->second.is_bound) {
      if (found->second.seen_as && found->second.seen_as->sightings > 0) --found->second.seen_as->sightings;
    } else if (found->second.id == sighting.id) {
      known_.erase(found);
    }
  }
  // What threads remember of their stacks may name one of these by its class, or a dead one at its address.
  if (std::exchange(has_bound_, false)) next_generation();
}

std::uint32_t ModuleRegistry::name(std::uint32_t id, std::string_view class_name, std::uint32_t owner,
                                   std::string_view name) {
  if (id == 0) return table_.add_module(class_name, owner, name);
  return table_.name_module(id, class_name, owner, name) ? id : 0;
}

void ModuleRegistry::bind(const void* module, std::uint32_t id) {
  const std::lock_guard<std::mutex> guard(mutex_);
  Known& known = known_[module];
  known.id = id;
  known.is_bound = true;
  has_bound_ = true;
}

void ModuleRegistry::forget(const void* module) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = known_.find(module);
  if (found == known_.end()) return;
  if (found->second.seen_as) ++found->second.seen_as->sightings;
  known_.erase(found);
  next_generation();
}

}  // namespace alloctrace::python
