// What blocks were for, and how their lives went, in a fold.
#include <algorithm>
#include <iterator>
#include <map>

#include "roles.h"

namespace alloctrace {
namespace {

constexpr std::uint32_t kNobody = UINT32_MAX;
// In the byte of a block's maker: thread, passes and step are those of the block before it.
constexpr std::uint8_t kLikeBefore = 0x80;

}  // namespace

void Fates::save(FoldWriter& fold, const std::vector<DeviceMemory>& devices,
                 const std::vector<std::uint64_t>& births) const {
  fold.number(threads_.size());
  for (const Thread& thread : threads_) {
    fold.number(thread.nodes);
    fold.number(thread.nodes_passed);
    fold.number(thread.nodes_before);
    fold.number(thread.passes);
    fold.number(thread.evaluated == kNobody ? 0 : thread.evaluated + std::uint64_t{1});
    fold.number(thread.evaluated_pass);
    fold.byte(static_cast<std::uint8_t>((thread.is_in_pass ? 1 : 0) | (thread.is_of_engine ? 2 : 0)));
  }
  fold.number(number_of_thread_.size());
  for (const std::uint32_t number : number_of_thread_) fold.number(number == kNobody ? 0 : number + std::uint64_t{1});
  // In order: the same is written as the same bytes.
  const std::map<std::uint64_t, std::uint32_t> by_id(number_by_autograd_id_.begin(), number_by_autograd_id_.end());
  fold.number(by_id.size());
  for (const auto& [id, number] : by_id) {
    fold.number(id);
    fold.number(number);
  }
  for (const std::uint64_t value : {began_by_, nodes_at_begin_, last_refusal_, counted_}) fold.number(value);
  fold.number(steps_);
  fold.number(passes_);
  for (std::size_t device = 0; device < devices.size(); ++device) {
    std::vector<PieceIndex> live;
    const DeviceMemory& memory = devices[device];
    memory.for_each_allocated([&](const Piece& piece) {
      const PieceIndex index = memory.index_of(piece);
      if (device < origins_.size() && index < origins_[device].size() &&
          origins_[device][index].birth == piece.alloc_sequence) {
        live.push_back(index);
      }
    });
    fold.number(live.size());
    PieceIndex last = 0;
    Origin before;
    for (const PieceIndex index : live) {
      const Origin& origin = origins_[device][index];
      fold.number(index - last);
      last = index;
      const bool is_like_before =
          origin.thread == before.thread && origin.passes == before.passes && origin.step == before.step;
      const unsigned maker = static_cast<unsigned>(origin.maker) << 1 | (origin.makes_nodes ? 1 : 0);
      fold.byte(static_cast<std::uint8_t>(maker | (is_like_before ? kLikeBefore : 0)));
      if (!is_like_before) {
        fold.number(origin.thread);
        fold.number(origin.passes);
        fold.number(origin.step);
      }
      fold.difference(origin.allocations, before.allocations);
      before = origin;
    }
  }
  fold.number(keys_.size());
  for (std::size_t row = 0; row < keys_.size(); ++row) {
    fold.number(keys_[row] >> 48);
    fold.stack(static_cast<std::uint32_t>(keys_[row] >> 16));
    fold.number(keys_[row] & 0xffff);
    for (const std::uint64_t bytes : bytes_[row]) fold.number(bytes);
  }
  // That of a block that is live yet is not known.
  std::vector<std::uint64_t> known;
  std::copy_if(births.begin(), births.end(), std::back_inserter(known),
               [&](std::uint64_t birth) { return of(birth) != Fate::kUnknown; });
  fold.number(known.size());
  std::uint64_t last = 0;
  for (const std::uint64_t birth : known) {
    fold.difference(birth, last);
    last = birth;
    fold.byte(static_cast<std::uint8_t>(of(birth)));
  }
}

void Fates::restore(FoldReader& fold, const std::vector<DeviceMemory>& devices) {
  const std::size_t threads = fold.count(7);
  const auto nobody_or_one = [&] {
    const std::uint64_t number = fold.below(threads + 1);
    return number == 0 ? kNobody : static_cast<std::uint32_t>(number - 1);
  };
  for (std::size_t index = 0; index < threads; ++index) {
    Thread& thread = threads_.emplace_back();
    thread.nodes = fold.number();
    thread.nodes_passed = fold.number();
    thread.nodes_before = fold.number();
    thread.passes = fold.number32();
    thread.evaluated = nobody_or_one();
    thread.evaluated_pass = fold.number32();
    const std::uint8_t flags = fold.byte();
    thread.is_in_pass = (flags & 1) != 0;
    thread.is_of_engine = (flags & 2) != 0;
  }
  for (std::size_t left = fold.count(); left > 0; --left) number_of_thread_.push_back(nobody_or_one());
  for (std::size_t left = fold.count(2); left > 0; --left) {
    const std::uint64_t id = fold.number();
    number_by_autograd_id_[id] = static_cast<std::uint32_t>(fold.below(threads));
  }
  for (std::uint64_t* value : {&began_by_, &nodes_at_begin_, &last_refusal_, &counted_}) *value = fold.number();
  steps_ = fold.number32();
  passes_ = fold.number32();
  for (const DeviceMemory& memory : devices) {
    std::vector<Origin>& origins = origins_.emplace_back();
    PieceIndex index = 0;
    Origin before;
    for (std::size_t left = fold.count(3); left > 0; --left) {
      index += static_cast<PieceIndex>(fold.below(memory.piece_count()));
      if (index >= memory.piece_count()) throw DecodeError("a block that is not there");
      if (index >= origins.size()) origins.resize(index + std::size_t{1});
      Origin& origin = origins[index];
      const std::uint8_t first = fold.byte(), maker = (first & ~kLikeBefore) >> 1;
      if (maker > static_cast<std::uint8_t>(Maker::kRoot)) throw DecodeError("a block made by nobody");
      if ((first & kLikeBefore) == 0) {
        before.thread = static_cast<std::uint32_t>(fold.below(threads));
        before.passes = fold.number32();
        before.step = fold.number32();
      } else if (before.thread >= threads) {
        throw DecodeError("a block of no thread");
      }
      before.allocations = static_cast<std::uint32_t>(fold.difference(before.allocations));
      before.maker = static_cast<Maker>(maker);
      before.makes_nodes = (first & 1) != 0;
      before.birth = memory.piece(index).alloc_sequence;
      origin = before;
    }
  }
  for (std::size_t left = fold.count(3 + kFateCount); left > 0; --left) {
    const std::uint64_t device = fold.below(kMaxDevices);
    const std::uint32_t stack = fold.stack();
    const auto node_type = static_cast<std::uint16_t>(fold.below(UINT16_MAX + std::uint64_t{1}));
    const std::uint64_t key = place(static_cast<std::size_t>(device), stack, node_type);
    const auto [row, is_new] = places_.insert(key);
    if (is_new) {
      *row = static_cast<std::uint32_t>(bytes_.size());
      bytes_.emplace_back();
      keys_.push_back(key);
    }
    for (std::uint64_t& bytes : bytes_[*row]) bytes += fold.number();
  }
  std::uint64_t last = 0;
  for (std::size_t left = fold.count(2); left > 0; --left) {
    last = fold.difference(last);
    const std::uint8_t fate = fold.byte();
    if (fate >= kFateCount) throw DecodeError("a fate that is not known");
    folded_[last] = static_cast<Fate>(fate);
  }
}

void Roles::save(FoldWriter& fold, const Replay& replay, const std::vector<Key>& past) const {
  const auto is_live = [&](const NamedBlock& block) {
    const Piece* const piece = replay.devices()[block.device].allocated_at(block.address);
    return piece && piece->alloc_sequence == block.alloc_sequence;
  };
  const auto put_place = [&](const Place& place) {
    const auto& [device, stack, node_type, requested] = place;
    fold.number(device);
    fold.stack(stack);
    fold.number(node_type);
    fold.number(requested);
  };
  // Of what is dead only the sums by place are asked for.
  std::map<Place, Bytes> siblings = siblings_;
  std::vector<const NamedBlock*> live;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<Role, Place>> exact;
  for (const NamedBlock& block : named_) {
    const Key key{block.alloc_sequence, block.address};
    const auto& said = exact_.at(key);
    if (is_live(block)) {
      live.push_back(&block);
      exact[{key.alloc_sequence, key.address}] = said;
    } else {
      siblings[said.second][static_cast<std::size_t>(said.first)] += block.requested;
    }
  }
  for (const Key& key : past) {
    if (const auto said = exact_.find(key); said != exact_.end()) {
      exact[{key.alloc_sequence, key.address}] = said->second;
    }
  }
  fold.number(live.size());
  for (const NamedBlock* block : live) {
    fold.number(block->sequence);
    fold.number(block->device);
    fold.number(block->address);
    fold.number(block->alloc_sequence);
    fold.number(block->requested);
    fold.stack(block->stack);
    fold.number(block->name);
    fold.number(static_cast<std::uint64_t>(block->role));
    fold.flag(block->is_older);
  }
  fold.number(exact.size());
  for (const auto& [key, said] : exact) {
    fold.number(key.first);
    fold.number(key.second);
    fold.number(static_cast<std::uint64_t>(said.first));
    put_place(said.second);
  }
  fold.number(siblings.size());
  for (const auto& [place, bytes] : siblings) {
    put_place(place);
    for (const std::uint64_t of_role : bytes) fold.number(of_role);
  }
  fold.section([&](FoldWriter& inner) {
    std::vector<std::uint64_t> births;
    for (const Key& key : past) births.push_back(key.alloc_sequence);
    std::sort(births.begin(), births.end());
    births.erase(std::unique(births.begin(), births.end()), births.end());
    fates_.save(inner, replay.devices(), births);
  });
}

void Roles::restore(FoldReader& fold, const Replay& replay) {
  const std::uint64_t devices = std::max<std::size_t>(replay.devices().size(), 1);
  const auto role = [&] { return static_cast<Role>(fold.below(kRoleCount)); };
  const auto place = [&] {
    Place read;
    std::get<0>(read) = static_cast<std::size_t>(fold.below(devices));
    std::get<1>(read) = fold.stack();
    std::get<2>(read) = static_cast<std::uint16_t>(fold.below(UINT16_MAX + std::uint64_t{1}));
    std::get<3>(read) = fold.number();
    return read;
  };
  for (std::size_t left = fold.count(9); left > 0; --left) {
    NamedBlock& block = named_.emplace_back();
    block.sequence = fold.number();
    block.device = static_cast<std::size_t>(fold.below(devices));
    block.address = fold.number();
    block.alloc_sequence = fold.number();
    block.requested = fold.number();
    block.stack = fold.stack();
    block.name = fold.number32();
    block.role = role();
    block.is_older = fold.flag();
  }
  for (std::size_t left = fold.count(7); left > 0; --left) {
    const std::uint64_t birth = fold.number(), address = fold.number();
    const Role said = role();
    exact_[{birth, address}] = {said, place()};
  }
  for (const NamedBlock& block : named_) {
    if (!exact_.contains({block.alloc_sequence, block.address}))
      throw DecodeError("a block that was named and is not known");
  }
  for (std::size_t left = fold.count(4 + kRoleCount); left > 0; --left) {
    Bytes& bytes = siblings_[place()];
    for (std::uint64_t& of_role : bytes) of_role += fold.number();
  }
  FoldReader fates = fold.section();
  fates_.restore(fates, replay.devices());
}

}  // namespace alloctrace
