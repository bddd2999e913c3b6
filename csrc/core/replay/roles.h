// What each block is for. The rules, in this order; docs/roles.md has them in words.
//
// exact
//   1. a library keeps it for itself: library workspace
//   2. the program named it (a kRole event while it lived): what it said last
// inferred, from others made at the same place
//   3. made in a pass of backward and still there after it, as one of the same stack, type of node and size that the
//      program named: what those are
//   4. made by the program and held for long, as one of the same stack that the program named: what those are
// inferred, from its fate
//   5. see role_of_fate()
// What was cut off by the end of the trace or by a refused request takes the usual fate of its place. Else: unknown.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../base/seeded_hash.h"
#include "../format/event_fields.h"
#include "fates.h"
#include "replay.h"

namespace alloctrace {

struct BlockRole {
  Role role = Role::kUnknown;
  bool is_exact = false;
};

// What the program said of a block.
struct NamedBlock {
  std::uint64_t sequence = 0;  // of the event that said so
  std::size_t device = 0;      // in the replay
  std::uint64_t address = 0, birth = 0, requested = 0;
  std::uint32_t stack = 0, name = 0;  // string id of the name
  Role role = Role::kUnknown;
  bool is_older = false;  // than the recording
};

class Roles {
 public:
  explicit Roles(const Definitions& definitions) : definitions_(&definitions), fates_(definitions) {}

  Fates& fates() { return fates_; }
  // The program says what a block is. Nothing if none is live there: it is another allocator's, or its alloc was lost.
  void take(const Event& event, std::uint64_t sequence, const Replay& replay);
  void finish(const Replay& end);
  // What a block was, as a moment of the past has it: when it was born and where.
  struct Key {
    std::uint64_t birth, address;  // blocks that are older than the recording share their birth
    bool operator==(const Key&) const = default;
  };
  // past: blocks that are asked about later though they have died.
  void save(FoldWriter& fold, const Replay& replay, const std::vector<Key>& past) const;
  void restore(FoldReader& fold, const Replay& replay);

  // Of a block that was live at some position; after finish().
  BlockRole of(std::size_t device, const Piece& piece) const;
  // As often as the program said so, in order.
  const std::vector<NamedBlock>& named() const { return named_; }

 private:
  using Bytes = std::array<std::uint64_t, kRoleCount>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const { return seeded_hash(seeded_hash(key.birth) ^ key.address); }
  };
  // Device, stack, type of node, requested bytes; of what the program made, the last two are 0.
  using Place = std::tuple<std::size_t, std::uint32_t, std::uint16_t, std::uint64_t>;

  Role of_siblings(const Place& place) const;
  Role role_of_fate(Fate fate, std::size_t device, const Piece& piece) const;
  bool is_of_optimizer(std::uint32_t stack) const { return fates_.kinds().is_of_optimizer(stack); }

  const Definitions* definitions_;
  Fates fates_;
  std::vector<NamedBlock> named_;
  std::unordered_map<Key, std::pair<Role, Place>, KeyHash> exact_;
  std::map<Place, Bytes> siblings_;
  std::vector<std::vector<bool>> is_recurring_;  // by device and stack: it has allocated more than once
};

}  // namespace alloctrace
