// What each block was asked for with: most allocators do not tell it again when they free one.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "../base/address_map.h"
#include "../format/definitions.h"
#include "../format/event.h"

namespace alloctrace {

class RequestedSizes {
 public:
  explicit RequestedSizes(const Definitions& definitions) : definitions_(definitions) {}

  // Takes in the next event; fills in the size of a free, where it was not told and its alloc is known.
  void fill_in(Event& event);

 private:
  struct Sizes {
    AddressMap<std::uint64_t> live;
    AddressMap<std::uint64_t> pending;  // the free is requested, and not yet completed
  };

  const Definitions& definitions_;
  std::map<std::pair<std::int32_t, std::int32_t>, Sizes> devices_;
};

}  // namespace alloctrace
