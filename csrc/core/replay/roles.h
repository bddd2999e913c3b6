// Roles of blocks (docs/roles.md). The first rule that applies decides; if none does, the role is unknown.
//
// exact
//   1. its stack is that of a library: library workspace. See DeviceMemory::set_origin, torch/cuda/library_blocks.h
//   2. the program named the block in a kRole event: the last name
// unknown
//   3. older than the recording
// inferred from siblings, which are named blocks of the same place
//   4. allocated in a pass of backward and live after it: siblings have the same stack, node type and size
//   5. allocated by the program and held for long: siblings have the same stack
// inferred from its stack
//   6. allocated by Module._apply, which moves and casts modules, or by a constructor of torch.nn: parameter
// inferred from its lifetime
//   7. role_of_lifetime(); the usual lifetime of its place if a failed allocation or the end of the trace cut it off
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "../base/hash.h"
#include "../format/event_fields.h"
#include "lifetimes.h"
#include "replay.h"

namespace alloctrace {

struct BlockRole {
  Role role = Role::kUnknown;
  bool is_exact = false;
};

struct NamedBlock {
  std::uint64_t sequence = 0;  // of the kRole event
  std::size_t device = 0;      // index in Replay::devices()
  std::uint64_t address = 0, alloc_sequence = 0, requested = 0;
  std::uint32_t stack = 0, name = 0;  // name: string id
  std::uint32_t module = 0;           // id; 0: unknown, or in the compacted part
  Role role = Role::kUnknown;
  bool is_older = false;  // allocated before the recording
};

class Roles {
 public:
  explicit Roles(const Definitions& definitions) : definitions_(&definitions), lifetimes_(definitions) {}

  Lifetimes& lifetimes() { return lifetimes_; }
  // Record a kRole event. Ignore an address without a live block: of another allocator, or its allocation was lost.
  void add_named(const Event& event, std::uint64_t sequence, const Replay& replay);
  void finish(const Replay& end);
  struct Key {
    std::uint64_t alloc_sequence, address;  // address: blocks older than the recording share a number
    auto operator<=>(const Key&) const = default;
  };
  // `past`: freed blocks whose roles are needed for compacted positions.
  void save(CompactionWriter& out, const Replay& replay, const std::vector<Key>& past) const;
  void restore(CompactionReader& in, const Replay& replay);

  // Return the role of a block that was live at any position. Call after finish().
  BlockRole role_of(std::size_t device, const Piece& piece) const;
  // Return an entry for each recorded kRole event, in order.
  const std::vector<NamedBlock>& named() const { return named_; }

 private:
  using Bytes = std::array<std::uint64_t, kRoleCount>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const { return seeded_hash(seeded_hash(key.alloc_sequence) ^ key.address); }
  };
  // Where blocks are allocated. Node type and requested bytes are 0 for blocks allocated outside backward.
  struct Place {
    std::size_t device = 0;
    std::uint32_t stack = 0;
    std::uint16_t node_type = 0;
    std::uint64_t requested = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct ExactRole {
    Role role = Role::kUnknown;
    Place place;
  };
  // The part of the roles that compaction keeps.
  struct Selection {
    std::vector<const NamedBlock*> live;
    std::map<Key, ExactRole> exact;   // of live blocks, and of freed ones whose roles are needed
    std::map<Place, Bytes> siblings;  // of freed blocks
  };

  Selection select(const Replay& replay, const std::vector<Key>& past) const;
  static void put_place(CompactionWriter& out, const Place& place);
  static Place read_place(CompactionReader& in, std::uint64_t devices);
  Role role_of_siblings(const Place& place) const;
  Role role_of_lifetime(Lifetime lifetime, std::size_t device, const Piece& piece) const;
  bool is_of_optimizer(std::uint32_t stack) const { return lifetimes_.kinds().is_of_optimizer(stack); }

  const Definitions* definitions_;
  Lifetimes lifetimes_;
  std::vector<NamedBlock> named_;
  std::unordered_map<Key, ExactRole, KeyHash> exact_;
  std::map<Place, Bytes> siblings_;
  std::vector<std::vector<bool>> is_recurring_;  // by device and stack: more than one allocation
};

}  // namespace alloctrace
