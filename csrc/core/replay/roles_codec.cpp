// Lifetimes and Roles in the compacted part of a trace.
#include <algorithm>
#include <iterator>
#include <map>

#include "roles.h"

namespace alloctrace {
namespace {

constexpr std::uint32_t kNoThread = UINT32_MAX;
// Flag beside a block's phase: its thread, passes and step are those of the previous block.
constexpr std::uint8_t kSameAsPrevious = 0x80;

}  // namespace

void Lifetimes::save(CompactionWriter& out, const std::vector<DeviceMemory>& devices,
                     const std::vector<std::uint64_t>& freed) const {
  out.number(threads_.size());
  for (const Thread& thread : threads_) {
    out.number(thread.nodes);
    out.number(thread.nodes_passed);
    out.number(thread.nodes_before);
    out.number(thread.passes);
    out.number(thread.evaluated_thread == kNoThread ? 0 : thread.evaluated_thread + std::uint64_t{1});
    out.number(thread.evaluated_pass);
    out.byte(static_cast<std::uint8_t>((thread.is_in_pass ? 1 : 0) | (thread.is_of_engine ? 2 : 0)));
  }
  out.number(thread_index_.size());
  for (const std::uint32_t number : thread_index_) out.number(number == kNoThread ? 0 : number + std::uint64_t{1});
  // Ordered, so that equal maps are written as equal bytes.
  const std::map<std::uint64_t, std::uint32_t> by_id(index_by_autograd_id_.begin(), index_by_autograd_id_.end());
  out.number(by_id.size());
  for (const auto& [id, number] : by_id) {
    out.number(id);
    out.number(number);
  }
  for (const std::uint64_t value : {first_thread_, nodes_at_begin_, last_oom_, counted_}) out.number(value);
  out.number(steps_);
  out.number(passes_);
  for (std::size_t device = 0; device < devices.size(); ++device) {
    std::vector<PieceIndex> live;
    const DeviceMemory& memory = devices[device];
    memory.for_each_allocated([&](const Piece& piece) {
      const PieceIndex index = memory.index_of(piece);
      if (device < origins_.size() && index < origins_[device].size() &&
          origins_[device][index].alloc_sequence == piece.alloc_sequence) {
        live.push_back(index);
      }
    });
    out.number(live.size());
    PieceIndex last = 0;
    Origin before;
    for (const PieceIndex index : live) {
      const Origin& origin = origins_[device][index];
      out.number(index - last);
      last = index;
      const bool is_same_as_previous =
          origin.thread == before.thread && origin.passes == before.passes && origin.step == before.step;
      const unsigned phase = static_cast<unsigned>(origin.phase) << 1 | (origin.makes_nodes ? 1 : 0);
      out.byte(static_cast<std::uint8_t>(phase | (is_same_as_previous ? kSameAsPrevious : 0)));
      if (!is_same_as_previous) {
        out.number(origin.thread);
        out.number(origin.passes);
        out.number(origin.step);
      }
      out.difference(origin.allocations, before.allocations);
      before = origin;
    }
  }
  out.number(keys_.size());
  for (std::size_t row = 0; row < keys_.size(); ++row) {
    out.number(keys_[row] >> 48);
    out.stack(static_cast<std::uint32_t>(keys_[row] >> 16));
    out.number(keys_[row] & 0xffff);
    for (const std::uint64_t bytes : bytes_[row]) out.number(bytes);
  }
  // Live blocks have no lifetime yet.
  std::vector<std::uint64_t> decided;
  std::copy_if(freed.begin(), freed.end(), std::back_inserter(decided),
               [&](std::uint64_t block) { return of(block) != Lifetime::kUnknown; });
  out.number(decided.size());
  std::uint64_t last = 0;
  for (const std::uint64_t block : decided) {
    out.difference(block, last);
    last = block;
    out.byte(static_cast<std::uint8_t>(of(block)));
  }
}

void Lifetimes::restore(CompactionReader& in, const std::vector<DeviceMemory>& devices) {
  const std::size_t threads = in.count(7);
  const auto read_optional_thread = [&] {
    const std::uint64_t number = in.below(threads + 1);
    return number == 0 ? kNoThread : static_cast<std::uint32_t>(number - 1);
  };
  for (std::size_t index = 0; index < threads; ++index) {
    Thread& thread = threads_.emplace_back();
    thread.nodes = in.number();
    thread.nodes_passed = in.number();
    thread.nodes_before = in.number();
    thread.passes = in.number32();
    thread.evaluated_thread = read_optional_thread();
    thread.evaluated_pass = in.number32();
    const std::uint8_t flags = in.byte();
    thread.is_in_pass = (flags & 1) != 0;
    thread.is_of_engine = (flags & 2) != 0;
  }
  for (std::size_t left = in.count(); left > 0; --left) thread_index_.push_back(read_optional_thread());
  for (std::size_t left = in.count(2); left > 0; --left) {
    const std::uint64_t id = in.number();
    index_by_autograd_id_[id] = static_cast<std::uint32_t>(in.below(threads));
  }
  for (std::uint64_t* value : {&first_thread_, &nodes_at_begin_, &last_oom_, &counted_}) *value = in.number();
  steps_ = in.number32();
  passes_ = in.number32();
  for (const DeviceMemory& memory : devices) {
    std::vector<Origin>& origins = origins_.emplace_back();
    PieceIndex index = 0;
    Origin before;
    for (std::size_t left = in.count(3); left > 0; --left) {
      index += static_cast<PieceIndex>(in.below(memory.piece_count()));
      if (index >= memory.piece_count()) throw DecodeError("a block that is not there");
      if (index >= origins.size()) origins.resize(index + std::size_t{1});
      Origin& origin = origins[index];
      const std::uint8_t first = in.byte(), phase = (first & ~kSameAsPrevious) >> 1;
      if (phase > static_cast<std::uint8_t>(Phase::kRoot)) throw DecodeError("a block of an unknown phase");
      if ((first & kSameAsPrevious) == 0) {
        before.thread = static_cast<std::uint32_t>(in.below(threads));
        before.passes = in.number32();
        before.step = in.number32();
      } else if (before.thread >= threads) {
        throw DecodeError("a block of no thread");
      }
      before.allocations = static_cast<std::uint32_t>(in.difference(before.allocations));
      before.phase = static_cast<Phase>(phase);
      before.makes_nodes = (first & 1) != 0;
      before.alloc_sequence = memory.piece(index).alloc_sequence;
      origin = before;
    }
  }
  for (std::size_t left = in.count(3 + kLifetimeCount); left > 0; --left) {
    const std::uint64_t device = in.below(kMaxDevices);
    const std::uint32_t stack = in.stack();
    const auto node_type = static_cast<std::uint16_t>(in.below(UINT16_MAX + std::uint64_t{1}));
    const std::uint64_t key = key_of(static_cast<std::size_t>(device), stack, node_type);
    const auto [row, is_new] = rows_.insert(key);
    if (is_new) {
      *row = static_cast<std::uint32_t>(bytes_.size());
      bytes_.emplace_back();
      keys_.push_back(key);
    }
    for (std::uint64_t& bytes : bytes_[*row]) bytes += in.number();
  }
  std::uint64_t last = 0;
  for (std::size_t left = in.count(2); left > 0; --left) {
    last = in.difference(last);
    const std::uint8_t lifetime = in.byte();
    if (lifetime >= kLifetimeCount) throw DecodeError("an unknown lifetime");
    compacted_[last] = static_cast<Lifetime>(lifetime);
  }
}

void Roles::save(CompactionWriter& out, const Replay& replay, const std::vector<Key>& past) const {
  const auto is_live = [&](const NamedBlock& block) {
    const Piece* const piece = replay.devices()[block.device].find_allocated(block.address);
    return piece && piece->alloc_sequence == block.alloc_sequence;
  };
  const auto put_place = [&](const Place& place) {
    const auto& [device, stack, node_type, requested] = place;
    out.number(device);
    out.stack(stack);
    out.number(node_type);
    out.number(requested);
  };
  // Freed blocks are needed only as sums by place.
  std::map<Place, Bytes> siblings = siblings_;
  std::vector<const NamedBlock*> live;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<Role, Place>> exact;
  for (const NamedBlock& block : named_) {
    const Key key{block.alloc_sequence, block.address};
    const auto& role_and_place = exact_.at(key);
    if (is_live(block)) {
      live.push_back(&block);
      exact[{key.alloc_sequence, key.address}] = role_and_place;
    } else {
      siblings[role_and_place.second][static_cast<std::size_t>(role_and_place.first)] += block.requested;
    }
  }
  for (const Key& key : past) {
    if (const auto entry = exact_.find(key); entry != exact_.end()) {
      exact[{key.alloc_sequence, key.address}] = entry->second;
    }
  }
  out.number(live.size());
  for (const NamedBlock* block : live) {
    out.number(block->sequence);
    out.number(block->device);
    out.number(block->address);
    out.number(block->alloc_sequence);
    out.number(block->requested);
    out.stack(block->stack);
    out.number(block->name);
    out.number(static_cast<std::uint64_t>(block->role));
    out.flag(block->is_older);
  }
  out.number(exact.size());
  for (const auto& [key, role_and_place] : exact) {
    out.number(key.first);
    out.number(key.second);
    out.number(static_cast<std::uint64_t>(role_and_place.first));
    put_place(role_and_place.second);
  }
  out.number(siblings.size());
  for (const auto& [place, bytes] : siblings) {
    put_place(place);
    for (const std::uint64_t of_role : bytes) out.number(of_role);
  }
  out.section([&](CompactionWriter& inner) {
    std::vector<std::uint64_t> freed;
    for (const Key& key : past) freed.push_back(key.alloc_sequence);
    std::sort(freed.begin(), freed.end());
    freed.erase(std::unique(freed.begin(), freed.end()), freed.end());
    lifetimes_.save(inner, replay.devices(), freed);
  });
}

void Roles::restore(CompactionReader& in, const Replay& replay) {
  const std::uint64_t devices = std::max<std::size_t>(replay.devices().size(), 1);
  const auto read_role = [&] { return static_cast<Role>(in.below(kRoleCount)); };
  const auto read_place = [&] {
    Place place;
    std::get<0>(place) = static_cast<std::size_t>(in.below(devices));
    std::get<1>(place) = in.stack();
    std::get<2>(place) = static_cast<std::uint16_t>(in.below(UINT16_MAX + std::uint64_t{1}));
    std::get<3>(place) = in.number();
    return place;
  };
  for (std::size_t left = in.count(9); left > 0; --left) {
    NamedBlock& block = named_.emplace_back();
    block.sequence = in.number();
    block.device = static_cast<std::size_t>(in.below(devices));
    block.address = in.number();
    block.alloc_sequence = in.number();
    block.requested = in.number();
    block.stack = in.stack();
    block.name = in.number32();
    block.role = read_role();
    block.is_older = in.flag();
  }
  for (std::size_t left = in.count(7); left > 0; --left) {
    const std::uint64_t birth = in.number(), address = in.number();
    const Role role = read_role();
    exact_[{birth, address}] = {role, read_place()};
  }
  for (const NamedBlock& block : named_) {
    if (!exact_.contains({block.alloc_sequence, block.address})) throw DecodeError("a named block without a role");
  }
  for (std::size_t left = in.count(4 + kRoleCount); left > 0; --left) {
    Bytes& bytes = siblings_[read_place()];
    for (std::uint64_t& of_role : bytes) of_role += in.number();
  }
  CompactionReader lifetimes = in.section();
  lifetimes_.restore(lifetimes, replay.devices());
}

}  // namespace alloctrace
