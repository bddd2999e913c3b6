// Ids for what events name: the same for equal keys, counted from 1, and given out only once their definition is in the
// log, since an event must never name what no reader can know.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>

#include "../format/definitions.h"

namespace alloctrace {

struct TextHash {
  using is_transparent = void;  // a string_view is looked up without making a string of it
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
};
struct LocationHash {
  std::size_t operator()(const Location& location) const noexcept {
    std::uint64_t mixed = static_cast<std::uint32_t>(location.device_type) ^
                          std::uint64_t{static_cast<std::uint32_t>(location.device_index)} << 32;
    for (const std::uint64_t part : {location.stream, location.pool_first, location.pool_second}) {
      mixed = (mixed ^ part) * 0x9E3779B97F4A7C15u;
      mixed ^= mixed >> 32;
    }
    return static_cast<std::size_t>(mixed);
  }
};

template <typename Key, typename Hash>
class IdTable {
 public:
  // 0 when it has none.
  template <typename LookedUp>
  std::uint32_t find(const LookedUp& key) const {
    const auto entry = ids_.find(key);
    return entry == ids_.end() ? 0 : entry->second;
  }
  std::uint32_t next() const { return next_; }

  // The id of `key`, 0 when its definition could not be stored. `define(id)` is called for a new key and says whether
  // it was; if not, the next call tries again.
  template <typename LookedUp, typename Define>
  std::uint32_t id_of(const LookedUp& key, Define define) {
    auto entry = ids_.find(key);
    if (entry != ids_.end() && entry->second != 0) return entry->second;
    // Made before the definition is stored: were there no memory for it afterwards, the id would be given out twice.
    if (entry == ids_.end()) entry = ids_.emplace(Key(key), 0).first;
    if (!define(next_)) return 0;
    return entry->second = next_++;
  }

 private:
  std::unordered_map<Key, std::uint32_t, Hash, std::equal_to<>> ids_;
  std::uint32_t next_ = 1;
};

}  // namespace alloctrace
