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

// Write an index of a thread, or kNoThread as 0.
void put_optional_thread(CompactionWriter& out, std::uint32_t thread) {
  out.number(thread == kNoThread ? 0 : thread + std::uint64_t{1});
}

std::uint32_t read_optional_thread(CompactionReader& in, std::size_t threads) {
  const std::uint64_t number = in.below(threads + std::uint64_t{1});
  return number == 0 ? kNoThread : static_cast<std::uint32_t>(number - 1);
}

std::uint16_t read_node_type(CompactionReader& in) {
  return static_cast<std::uint16_t>(in.below(UINT16_MAX + std::uint64_t{1}));
}

void put_named(CompactionWriter& out, const NamedBlock& block) {
  out.number(block.sequence);
  out.number(block.device);
  out.number(block.address);
  out.number(block.alloc_sequence);
  out.number(block.requested);
  out.stack(block.stack);
  out.number(block.name);
  out.number(static_cast<std::uint64_t>(block.role));
  out.flag(block.is_older);
}

NamedBlock read_named(CompactionReader& in, std::uint64_t devices) {
  NamedBlock block;
  block.sequence = in.number();
  block.device = static_cast<std::size_t>(in.below(devices));
  block.address = in.number();
  block.alloc_sequence = in.number();
  block.requested = in.number();
  block.stack = in.stack();
  block.name = in.number32();
  block.role = static_cast<Role>(in.below(kRoleCount));
  block.is_older = in.flag();
  return block;
}

}  // namespace

void Lifetimes::save_threads(CompactionWriter& out) const {
  out.number(threads_.size());
  for (const Thread& thread : threads_) {
    out.number(thread.nodes);
    out.number(thread.nodes_passed);
    out.number(thread.nodes_before);
    out.number(thread.passes);
    put_optional_thread(out, thread.evaluated_thread);
    out.number(thread.evaluated_pass);
    out.byte(static_cast<std::uint8_t>((thread.is_in_pass ? 1 : 0) | (thread.is_of_engine ? 2 : 0)));
  }
  out.number(thread_index_.size());
  for (const std::uint32_t thread : thread_index_) put_optional_thread(out, thread);
  // Ordered, so that equal maps are written as equal bytes.
  const std::map<std::uint64_t, std::uint32_t> by_id(index_by_autograd_id_.begin(), index_by_autograd_id_.end());
  out.number(by_id.size());
  for (const auto& [id, thread] : by_id) {
    out.number(id);
    out.number(thread);
  }
}

void Lifetimes::restore_threads(CompactionReader& in) {
  const std::size_t threads = in.count(7);
  for (std::size_t index = 0; index < threads; ++index) {
    Thread& thread = threads_.emplace_back();
    thread.nodes = in.number();
    thread.nodes_passed = in.number();
    thread.nodes_before = in.number();
    thread.passes = in.number32();
    thread.evaluated_thread = read_optional_thread(in, threads);
    thread.evaluated_pass = in.number32();
    const std::uint8_t flags = in.byte();
    thread.is_in_pass = (flags & 1) != 0;
    thread.is_of_engine = (flags & 2) != 0;
  }
  for (std::size_t left = in.count(); left > 0; --left) thread_index_.push_back(read_optional_thread(in, threads));
  for (std::size_t left = in.count(2); left > 0; --left) {
    const std::uint64_t id = in.number();
    index_by_autograd_id_[id] = static_cast<std::uint32_t>(in.below(threads));
  }
}

void Lifetimes::put_origin(CompactionWriter& out, const Origin& origin, const Origin& before) {
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
}

// Read all of an origin except `alloc_sequence`, which is not written.
Lifetimes::Origin Lifetimes::read_origin(CompactionReader& in, const Origin& before, std::size_t threads) {
  Origin origin = before;
  const std::uint8_t first = in.byte(), phase = (first & ~kSameAsPrevious) >> 1;
  if (phase > static_cast<std::uint8_t>(Phase::kRoot)) throw DecodeError("a block of an unknown phase");
  if ((first & kSameAsPrevious) == 0) {
    origin.thread = static_cast<std::uint32_t>(in.below(threads));
    origin.passes = in.number32();
    origin.step = in.number32();
  } else if (before.thread >= threads) {
    throw DecodeError("a block of no thread");
  }
  origin.allocations = static_cast<std::uint32_t>(in.difference(before.allocations));
  origin.phase = static_cast<Phase>(phase);
  origin.makes_nodes = (first & 1) != 0;
  return origin;
}

void Lifetimes::save_origins(CompactionWriter& out, std::size_t device, const DeviceMemory& memory) const {
  std::vector<PieceIndex> live;
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
    put_origin(out, origin, before);
    last = index;
    before = origin;
  }
}

void Lifetimes::restore_origins(CompactionReader& in, const DeviceMemory& memory) {
  std::vector<Origin>& origins = origins_.emplace_back();
  PieceIndex index = 0;
  Origin before;
  for (std::size_t left = in.count(3); left > 0; --left) {
    index += static_cast<PieceIndex>(in.below(memory.piece_count()));
    if (index >= memory.piece_count()) throw DecodeError("a block that is not there");
    if (index >= origins.size()) origins.resize(index + std::size_t{1});
    before = read_origin(in, before, threads_.size());
    before.alloc_sequence = memory.piece(index).alloc_sequence;
    origins[index] = before;
  }
}

// Pass each origin of a live block, by device.
template <typename Origins, typename Visit>
void Lifetimes::visit_origins(Origins& origins, const std::vector<DeviceMemory>& devices, Visit visit) {
  for (std::size_t device = 0; device < devices.size() && device < origins.size(); ++device) {
    devices[device].for_each_allocated([&](const Piece& piece) {
      const PieceIndex index = devices[device].index_of(piece);
      if (index >= origins[device].size()) return;
      auto& origin = origins[device][index];
      if (origin.alloc_sequence == piece.alloc_sequence) visit(origin);
    });
  }
}

// Write what is known of calls and rounds. Last: older versions write and read none of it.
void Lifetimes::save_calls(CompactionWriter& out, const std::vector<DeviceMemory>& devices) const {
  for (const Thread& thread : threads_) {
    out.flag(thread.is_in_call);
    out.number(thread.calls);
    out.number(thread.nodes_before_call);
    out.number(thread.last_device);
    out.number(thread.last_piece);
    out.number(thread.last_allocation);
  }
  const auto is_used = [](const Rounds& rounds) { return rounds.count != 0; };
  out.number(static_cast<std::uint64_t>(std::count_if(rounds_.begin(), rounds_.end(), is_used)));
  for (std::uint32_t stack = 0; stack < rounds_.size(); ++stack) {
    if (!is_used(rounds_[stack])) continue;
    out.stack(stack);
    put_optional_thread(out, rounds_[stack].thread);
    out.number(rounds_[stack].begun);
    out.number(rounds_[stack].count);
  }
  visit_origins(origins_, devices, [&](const Origin& origin) {
    out.byte(static_cast<std::uint8_t>((origin.is_in_call ? 1 : 0) | (origin.is_in_graph ? 2 : 0) |
                                       (origin.is_of_node ? 4 : 0) | (origin.is_last_of_call ? 8 : 0)));
    out.number(origin.calls);
    out.number(origin.round);
  });
}

void Lifetimes::restore_calls(CompactionReader& in, const std::vector<DeviceMemory>& devices) {
  if (in.done()) return;
  for (Thread& thread : threads_) {
    thread.is_in_call = in.flag();
    thread.calls = in.number32();
    thread.nodes_before_call = in.number();
    thread.last_device = in.number32();
    thread.last_piece = in.number32();
    thread.last_allocation = in.number();
  }
  for (std::size_t left = in.count(4); left > 0; --left) {
    const std::uint32_t stack = in.stack();
    if (stack >= definitions_->frame_count()) throw DecodeError("rounds of no stack");
    if (stack >= rounds_.size()) rounds_.resize(stack + std::size_t{1});
    rounds_[stack].thread = read_optional_thread(in, threads_.size());
    rounds_[stack].begun = in.number32();
    rounds_[stack].count = in.number32();
  }
  visit_origins(origins_, devices, [&](Origin& origin) {
    const std::uint8_t flags = in.byte();
    origin.is_in_call = (flags & 1) != 0;
    origin.is_in_graph = (flags & 2) != 0;
    origin.is_of_node = (flags & 4) != 0;
    origin.is_last_of_call = (flags & 8) != 0;
    origin.calls = in.number32();
    origin.round = in.number32();
  });
}

// Write the bytes of each lifetime by device, stack and node type.
void Lifetimes::save_counted(CompactionWriter& out) const {
  out.number(keys_.size());
  for (std::size_t row = 0; row < keys_.size(); ++row) {
    out.number(keys_[row] >> 48);
    out.stack(static_cast<std::uint32_t>(keys_[row] >> 16));
    out.number(keys_[row] & 0xffff);
    for (const std::uint64_t bytes : bytes_[row]) out.number(bytes);
  }
}

void Lifetimes::restore_counted(CompactionReader& in) {
  for (std::size_t left = in.count(3 + kLifetimeCount); left > 0; --left) {
    const std::uint64_t device = in.below(kMaxDevices);
    const std::uint32_t stack = in.stack();
    const std::uint64_t key = key_of(static_cast<std::size_t>(device), stack, read_node_type(in));
    const auto [row, is_new] = rows_.insert(key);
    if (is_new) {
      *row = static_cast<std::uint32_t>(bytes_.size());
      bytes_.emplace_back();
      keys_.push_back(key);
    }
    for (std::uint64_t& bytes : bytes_[*row]) bytes += in.number();
  }
}

// Write the lifetimes of freed blocks. Live blocks have none yet.
void Lifetimes::save_freed(CompactionWriter& out, const std::vector<std::uint64_t>& freed) const {
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

void Lifetimes::restore_freed(CompactionReader& in) {
  std::uint64_t last = 0;
  for (std::size_t left = in.count(2); left > 0; --left) {
    last = in.difference(last);
    const std::uint8_t lifetime = in.byte();
    if (lifetime >= kLifetimeCount) throw DecodeError("an unknown lifetime");
    compacted_[last] = static_cast<Lifetime>(lifetime);
  }
}

void Lifetimes::save(CompactionWriter& out, const std::vector<DeviceMemory>& devices,
                     const std::vector<std::uint64_t>& freed) const {
  save_threads(out);
  for (const std::uint64_t value : {first_thread_, nodes_at_begin_, last_oom_, counted_}) out.number(value);
  out.number(steps_);
  out.number(passes_);
  for (std::size_t device = 0; device < devices.size(); ++device) save_origins(out, device, devices[device]);
  save_counted(out);
  save_freed(out, freed);
  save_calls(out, devices);
}

void Lifetimes::restore(CompactionReader& in, const std::vector<DeviceMemory>& devices) {
  restore_threads(in);
  for (std::uint64_t* value : {&first_thread_, &nodes_at_begin_, &last_oom_, &counted_}) *value = in.number();
  steps_ = in.number32();
  passes_ = in.number32();
  for (const DeviceMemory& memory : devices) restore_origins(in, memory);
  restore_counted(in);
  restore_freed(in);
  restore_calls(in, devices);
}

void Roles::put_place(CompactionWriter& out, const Place& place) {
  out.number(place.device);
  out.stack(place.stack);
  out.number(place.node_type);
  out.number(place.requested);
}

Roles::Place Roles::read_place(CompactionReader& in, std::uint64_t devices) {
  Place place;
  place.device = static_cast<std::size_t>(in.below(devices));
  place.stack = in.stack();
  place.node_type = read_node_type(in);
  place.requested = in.number();
  return place;
}

// Select what a later pass needs. Freed blocks are needed only as sums by place.
Roles::Selection Roles::select(const Replay& replay, const std::vector<Key>& past) const {
  const auto is_live = [&](const NamedBlock& block) {
    const Piece* const piece = replay.devices()[block.device].find_allocated(block.address);
    return piece && piece->alloc_sequence == block.alloc_sequence;
  };
  Selection selection;
  selection.siblings = siblings_;
  for (const NamedBlock& block : named_) {
    const Key key{block.alloc_sequence, block.address};
    const ExactRole& exact = exact_.at(key);
    if (is_live(block)) {
      selection.live.push_back(&block);
      selection.exact[key] = exact;
    } else {
      selection.siblings[exact.place][static_cast<std::size_t>(exact.role)] += block.requested;
    }
  }
  for (const Key& key : past) {
    if (const auto entry = exact_.find(key); entry != exact_.end()) selection.exact[key] = entry->second;
  }
  return selection;
}

void Roles::save(CompactionWriter& out, const Replay& replay, const std::vector<Key>& past) const {
  const Selection selection = select(replay, past);
  out.number(selection.live.size());
  for (const NamedBlock* block : selection.live) put_named(out, *block);
  out.number(selection.exact.size());
  for (const auto& [key, exact] : selection.exact) {
    out.number(key.alloc_sequence);
    out.number(key.address);
    out.number(static_cast<std::uint64_t>(exact.role));
    put_place(out, exact.place);
  }
  out.number(selection.siblings.size());
  for (const auto& [place, bytes] : selection.siblings) {
    put_place(out, place);
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
  for (std::size_t left = in.count(9); left > 0; --left) named_.push_back(read_named(in, devices));
  for (std::size_t left = in.count(7); left > 0; --left) {
    Key key{};
    key.alloc_sequence = in.number();
    key.address = in.number();
    ExactRole& exact = exact_[key];
    exact.role = static_cast<Role>(in.below(kRoleCount));
    exact.place = read_place(in, devices);
  }
  for (const NamedBlock& block : named_) {
    if (!exact_.contains({block.alloc_sequence, block.address})) throw DecodeError("a named block without a role");
  }
  for (std::size_t left = in.count(4 + kRoleCount); left > 0; --left) {
    Bytes& bytes = siblings_[read_place(in, devices)];
    for (std::uint64_t& of_role : bytes) of_role += in.number();
  }
  CompactionReader lifetimes = in.section();
  lifetimes_.restore(lifetimes, replay.devices());
}

}  // namespace alloctrace
