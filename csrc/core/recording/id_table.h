// Ids for what events refer to: equal keys have equal ids, counted from 1. An id is returned only once its definition
// is in the log: without the definition, no reader could resolve the id.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>

#include "../base/hash.h"
#include "../format/definitions.h"

namespace alloctrace {

struct TextHash {
  using is_transparent = void;  // look up a string_view without a copy
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
};
struct LocationHash {
  std::size_t operator()(const Location& location) const noexcept {
    std::uint64_t hash = static_cast<std::uint32_t>(location.device_type) ^
                         std::uint64_t{static_cast<std::uint32_t>(location.device_index)} << 32;
    for (const std::uint64_t part : {location.stream, location.pool_first, location.pool_second}) {
      hash = extend_hash(hash, part);
    }
    return static_cast<std::size_t>(hash);
  }
};

// Contract with the owner (StackTable, Recorder): the owner's mutex is held during each call, including `define`. So
// threads that add equal keys get equal ids, and definitions are in the log in the order of their ids. No key is
// removed; a key whose definition failed has no id until a later call succeeds.
template <typename Key, typename Hash>
class IdTable {
 public:
  // Return the id of a key, 0 if it has none.
  template <typename LookedUp>
  std::uint32_t find(const LookedUp& key) const {
    const auto entry = ids_.find(key);
    return entry == ids_.end() ? 0 : entry->second;
  }
  std::uint32_t next_id() const { return next_id_; }

  // Return the id of `key`, 0 if its definition could not be stored. For a new key, `define(id)` stores the definition
  // and returns whether it succeeded; after a failure the next call tries again.
  template <typename LookedUp, typename Define>
  std::uint32_t find_or_add(const LookedUp& key, Define define) {
    auto entry = ids_.find(key);
    if (entry != ids_.end() && entry->second != 0) return entry->second;
    // Insert before the definition is stored: if the insertion failed later, the next key would get the id as well.
    if (entry == ids_.end()) entry = ids_.emplace(Key(key), 0).first;
    if (!define(next_id_)) return 0;
    return entry->second = next_id_++;
  }

 private:
  std::unordered_map<Key, std::uint32_t, Hash, std::equal_to<>> ids_;
  std::uint32_t next_id_ = 1;
};

}  // namespace alloctrace
