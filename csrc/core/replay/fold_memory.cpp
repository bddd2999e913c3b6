// The memory of all devices in a fold.
#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <vector>

#include "fold_events.h"
#include "replay.h"

namespace alloctrace {
namespace {

// Besides those of piece.h in the first byte of a block, which one of a known kind does not have.
constexpr std::uint8_t kKnownKind = 0x20, kAlone = 0x40;
constexpr std::uint64_t kMostSegments = UINT32_MAX;

void put_neighbour(FoldWriter& fold, PieceIndex value, PieceIndex of) {
  value == kNoPiece ? fold.number(0) : fold.difference(value, of);  // none is next to the one itself
}

PieceIndex neighbour(FoldReader& fold, PieceIndex of) {
  const std::uint64_t folded = fold.number();
  return folded == 0 ? kNoPiece : static_cast<PieceIndex>(add_zigzag_delta(of, folded));
}

bool equal(const Piece& a, const Piece& b) {
  if (a.state != b.state) return false;
  if (a.state == PieceState::kUnused) return true;
  return a.address == b.address && a.size == b.size && a.requested == b.requested &&
         a.alloc_sequence == b.alloc_sequence && a.alloc_ns == b.alloc_ns && a.previous == b.previous &&
         a.next == b.next && a.segment == b.segment && a.stack == b.stack && a.thread == b.thread &&
         a.node_type == b.node_type && a.is_of_backward == b.is_of_backward && a.is_older == b.is_older;
}

// Blocks of one kind, of which there are many wherever there are many blocks, differ in address and birth alone: such a
// one takes half of the room. Both sides number the kinds in the order in which they come.
using Kind =
    std::tuple<std::uint8_t, std::uint64_t, std::uint64_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint16_t>;
constexpr std::size_t kMostKinds = 1 << 14;  // numbers of two bytes

std::uint8_t flags_of(const Piece& piece) {
  return static_cast<std::uint8_t>(static_cast<std::uint8_t>(piece.state) | (piece.is_of_backward ? kBackwardBit : 0) |
                                   (piece.is_older ? kOlderBit : 0));
}

class PieceWriter {
 public:
  explicit PieceWriter(FoldWriter& fold) : fold_(&fold) {}

  void put(const Piece& piece, PieceIndex index) {
    if (piece.state == PieceState::kUnused) return fold_->byte(static_cast<std::uint8_t>(piece.state));
    const bool is_alone = piece.previous == kNoPiece && piece.next == kNoPiece;
    const std::uint8_t flags = is_alone ? kAlone : 0;
    const Kind kind{flags_of(piece), piece.size,   piece.requested, piece.segment,
                    piece.stack,     piece.thread, piece.node_type};
    const auto known = kinds_.find(kind);
    if (known != kinds_.end()) {
      fold_->byte(flags | kKnownKind);
      fold_->number(known->second);
      put_place(piece, last_[known->second]);
    } else {
      fold_->byte(flags | flags_of(piece));
      put_place(piece, any_);
      fold_->number(piece.size);
      fold_->difference(piece.requested, piece.size);
      fold_->number(piece.segment);
      fold_->stack(piece.stack);
      fold_->number(piece.thread);
      fold_->number(piece.node_type);
      if (last_.size() < kMostKinds) {
        kinds_.emplace(kind, last_.size());
        last_.push_back(piece.address);
      }
    }
    if (!is_alone) {
      put_neighbour(*fold_, piece.previous, index);
      put_neighbour(*fold_, piece.next, index);
    }
  }

 private:
  void put_place(const Piece& piece, std::uint64_t& last_address) {
    fold_->difference(piece.address, last_address);
    fold_->difference(piece.alloc_sequence, birth_);
    fold_->difference(static_cast<std::uint64_t>(piece.alloc_ns), birth_ns_);
    last_address = piece.address;
    birth_ = piece.alloc_sequence;
    birth_ns_ = static_cast<std::uint64_t>(piece.alloc_ns);
  }

  FoldWriter* fold_;
  std::map<Kind, std::size_t> kinds_;
  std::vector<std::uint64_t> last_;  // address of each kind
  std::uint64_t any_ = 0, birth_ = 0, birth_ns_ = 0;
};

class PieceParser {
 public:
  PieceParser(FoldReader& fold, std::size_t segments) : fold_(&fold), segments_(segments) {}

  Piece read(PieceIndex index) {
    const std::uint8_t first = fold_->byte();
    if ((first & kStateBits) > static_cast<std::uint8_t>(PieceState::kUnused))
      throw DecodeError("a block without a state");
    if (static_cast<PieceState>(first & kStateBits) == PieceState::kUnused) return {};
    Piece piece;
    if ((first & kKnownKind) != 0) {
      Piece& kind = kinds_[static_cast<std::size_t>(fold_->below(kinds_.size()))];
      read_place(kind, kind.address);
      piece = kind;
    } else {
      piece.state = static_cast<PieceState>(first & kStateBits);
      piece.is_of_backward = (first & kBackwardBit) != 0;
      piece.is_older = (first & kOlderBit) != 0;
      read_place(piece, any_);
      piece.size = fold_->number();
      piece.requested = std::min(fold_->difference(piece.size), kMaxBlockBytes);
      piece.segment = static_cast<std::uint32_t>(fold_->below(segments_));
      piece.stack = fold_->stack();
      piece.thread = fold_->number32();
      piece.node_type =
          static_cast<std::uint16_t>(fold_->below(std::max<std::size_t>(fold_->definitions().node_type_count(), 1)));
      any_ = piece.address;
      if (kinds_.size() < kMostKinds) kinds_.push_back(piece);
    }
    if ((first & kAlone) == 0) {
      piece.previous = neighbour(*fold_, index);
      piece.next = neighbour(*fold_, index);
    }
    return piece;
  }

 private:
  void read_place(Piece& piece, std::uint64_t last_address) {
    piece.address = fold_->difference(last_address);
    piece.alloc_sequence = birth_ = std::min(fold_->difference(birth_), kMaxSequence);
    birth_ns_ = fold_->difference(birth_ns_);
    piece.alloc_ns = static_cast<std::int64_t>(birth_ns_);
  }

  FoldReader* fold_;
  const std::size_t segments_;
  std::vector<Piece> kinds_;  // the last of each, without neighbours
  std::uint64_t any_ = 0, birth_ = 0, birth_ns_ = 0;
};

// Runs of pieces that are as in the base, and of others.
void put_pieces(FoldWriter& fold, const Pieces& pieces, const Pieces* base) {
  const auto is_known = [&](std::size_t at) { return base && at < base->size() && equal(pieces[at], (*base)[at]); };
  PieceWriter writer(fold);
  fold.number(pieces.size());
  for (std::size_t at = 0; at < pieces.size();) {
    const std::size_t known = at;
    while (at < pieces.size() && is_known(at)) ++at;
    const std::size_t others = at;
    while (at < pieces.size() && !is_known(at)) ++at;
    fold.number(others - known);
    fold.number(at - others);
    for (std::size_t other = others; other < at; ++other) {
      writer.put(pieces[other], static_cast<PieceIndex>(other));
    }
  }
}

void read_pieces(FoldReader& fold, Pieces& pieces, const Pieces* base, std::size_t segments) {
  const std::uint64_t count = fold.below(kNoPiece);
  PieceParser parser(fold, segments);
  pieces.clear();
  while (pieces.size() < count) {
    const std::uint64_t known = fold.number();
    const std::size_t left_in_base = base && base->size() > pieces.size() ? base->size() - pieces.size() : 0;
    if (known > left_in_base || known > count - pieces.size())
      throw DecodeError("blocks as before that were not there");
    for (std::uint64_t at = 0; at < known; ++at) {
      const Piece& piece = (*base)[pieces.size()];
      if (piece.state != PieceState::kUnused && piece.segment >= segments) throw DecodeError("a block of no segment");
      pieces.push_back(piece);
    }
    const std::size_t others = fold.count();
    if (others > count - pieces.size() || (known == 0 && others == 0)) throw DecodeError("more blocks than there are");
    for (std::size_t at = 0; at < others; ++at) {
      pieces.push_back(parser.read(static_cast<PieceIndex>(pieces.size())));
    }
  }
}

// Returns whether neighbours point to each other with ascending addresses, so that a walk along them ends.
bool are_linked(const Pieces& pieces) {
  const auto is_used = [&](PieceIndex index) {
    return index < pieces.size() && pieces[index].state != PieceState::kUnused;
  };
  for (PieceIndex index = 0; index < pieces.size(); ++index) {
    const Piece& piece = pieces[index];
    if (piece.state == PieceState::kUnused) continue;
    if (piece.segment == 0) {
      const bool is_alone = piece.previous == kNoPiece && piece.next == kNoPiece;
      if (!is_alone || (piece.state != PieceState::kAllocated && piece.state != PieceState::kPendingFree)) return false;
    }
    if (piece.next != kNoPiece &&
        (!is_used(piece.next) || pieces[piece.next].previous != index || pieces[piece.next].address <= piece.address)) {
      return false;
    }
    if (piece.previous != kNoPiece && (!is_used(piece.previous) || pieces[piece.previous].next != index)) return false;
  }
  return true;
}

// All pieces of a segment are in one chain: its record is given out again when the chain is dropped. Call only if
// are_linked().
bool has_one_chain_each(const Pieces& pieces, std::size_t segments) {
  std::vector<PieceIndex> head_of(segments, kNoPiece);
  for (PieceIndex head = 0; head < pieces.size(); ++head) {
    if (pieces[head].state == PieceState::kUnused || pieces[head].previous != kNoPiece) continue;
    for (PieceIndex index = head; index != kNoPiece; index = pieces[index].next) {
      PieceIndex& known = head_of[pieces[index].segment];
      if (pieces[index].segment != 0 && known != kNoPiece && known != head) return false;
      known = head;
    }
  }
  return true;
}

void put_set(FoldWriter& fold, const std::set<std::uint64_t>& values) {
  fold.number(values.size());
  std::uint64_t last = 0;
  for (const std::uint64_t value : values) {
    fold.difference(value, last);
    last = value;
  }
}

std::set<std::uint64_t> read_set(FoldReader& fold) {
  std::set<std::uint64_t> values;
  std::uint64_t last = 0;
  for (std::size_t left = fold.count(); left > 0; --left) values.insert(last = fold.difference(last));
  return values;
}

void put_settings(FoldWriter& fold, const AllocatorSettings& settings) {
  for (const std::uint64_t divisions : settings.roundup_power2_divisions) fold.number(divisions);
  fold.number(settings.max_split_size);
  fold.number(settings.large_segment_size);
  fold.number(settings.max_non_split_rounding_size);
  fold.number(std::bit_cast<std::uint64_t>(settings.garbage_collection_threshold));
  fold.flag(settings.expandable_segments);
}

// The bounds are those of AllocatorSettings::read.
AllocatorSettings read_settings(FoldReader& fold) {
  AllocatorSettings settings;
  for (std::uint64_t& divisions : settings.roundup_power2_divisions) divisions = fold.number();
  settings.max_split_size = fold.number();
  settings.large_segment_size = std::max(fold.number(), kSmallSegment);
  settings.max_non_split_rounding_size = fold.number();
  settings.garbage_collection_threshold = std::bit_cast<double>(fold.number());
  settings.expandable_segments = fold.flag();
  return settings;
}

}  // namespace

void DeviceMemory::save(FoldWriter& fold, const DeviceMemory* base) const {
  put_settings(fold, rules_.settings);
  fold.flag(rules_.reports_segments);
  fold.number(rules_.restoring_thread);
  for (const auto* pools : {&rules_.unsplit_pools, &rules_.left_pools, &rules_.own_pools}) put_set(fold, *pools);
  fold.number(segments_.size());
  for (const Segment& segment : segments_) {
    fold.number(segment.origin);
    fold.number(segment.unit);
    fold.number(segment.location);
    fold.byte(static_cast<std::uint8_t>((segment.is_large ? 1 : 0) | (segment.is_large_known ? 2 : 0) |
                                        (segment.is_expandable ? 4 : 0)));
  }
  fold.number(unused_segments_.size());
  for (const std::uint32_t index : unused_segments_) fold.number(index);
  put_pieces(fold, pieces_, base ? &base->pieces_ : nullptr);
  fold.number(totals_.reserved);
  fold.flag(history_.is_touched);
  fold.number(history_.unmatched_frees);
  fold.number(history_.missed_frees);
  put_set(fold, history_.unmatched_requests);
  // Of the stacks, those that had allocated another number then.
  std::vector<std::uint32_t> others;
  const auto totals_of = [](const DeviceMemory* memory, std::uint32_t stack) {
    return memory && stack < memory->stacks_.size() ? memory->stacks_[stack] : StackTotals{};
  };
  const std::size_t count = std::max(stacks_.size(), base ? base->stacks_.size() : 0);
  for (std::uint32_t stack = 0; stack < count; ++stack) {
    if (totals_of(this, stack).allocations != totals_of(base, stack).allocations) others.push_back(stack);
  }
  fold.number(others.size());
  for (const std::uint32_t stack : others) {
    const StackTotals totals = totals_of(this, stack);
    fold.stack(stack);
    fold.number(totals.allocations);
    fold.number(totals.bytes);
    fold.number(totals.largest);
  }
}

void DeviceMemory::restore(FoldReader& fold, const DeviceMemory* base) {
  rules_.settings = read_settings(fold);
  rules_.reports_segments = fold.flag();
  rules_.restoring_thread = fold.number32();
  for (auto* pools : {&rules_.unsplit_pools, &rules_.left_pools, &rules_.own_pools}) *pools = read_set(fold);
  const std::size_t segments = fold.count(4);
  if (segments == 0 || segments > kMostSegments) throw DecodeError("a device without a list of segments");
  segments_.clear();
  for (std::size_t index = 0; index < segments; ++index) {
    Segment segment;
    segment.origin = fold.number();
    segment.unit = std::max<std::uint64_t>(fold.number(), 1);
    segment.location = fold.number32();
    const std::uint8_t flags = fold.byte();
    segment.is_large = (flags & 1) != 0;
    segment.is_large_known = (flags & 2) != 0;
    segment.is_expandable = (flags & 4) != 0;
    if (segment.location >= fold.definitions().location_count()) segment.location = 0;
    segments_.push_back(segment);
  }
  if (segments_.front().is_expandable) throw DecodeError("blocks of no segment that could be mapped");
  unused_segments_.clear();
  for (std::size_t left = fold.count(); left > 0; --left) {
    unused_segments_.push_back(static_cast<std::uint32_t>(fold.below(segments)));
  }
  read_pieces(fold, pieces_, base ? &base->pieces_ : nullptr, segments);
  if (!are_linked(pieces_) || !has_one_chain_each(pieces_, segments))
    throw DecodeError("blocks that are not next to each other");
  std::vector<bool> is_used(segments);
  is_used.front() = true;
  for (const Piece& piece : pieces_) {
    if (piece.state != PieceState::kUnused) is_used[piece.segment] = true;
  }
  for (const std::uint32_t unused : unused_segments_) {
    if (is_used[unused]) throw DecodeError("a segment that is given out twice");
    is_used[unused] = true;
  }
  if (!rebuild(fold.number())) throw DecodeError("two blocks at one address");
  history_.is_touched = fold.flag();
  history_.unmatched_frees = fold.number();
  history_.missed_frees = fold.number();
  history_.unmatched_requests = read_set(fold);
  stacks_ = base ? base->stacks_ : std::vector<StackTotals>{};
  for (std::size_t left = fold.count(4); left > 0; --left) {
    StackTotals* const kept = totals_of(fold.stack());
    const std::uint64_t allocations = fold.number(), bytes = fold.number(), largest = fold.number();
    if (kept) *kept = {allocations, bytes, std::min(largest, kMaxBlockBytes)};
  }
}

void ForwardStacks::save(FoldWriter& fold) const {
  fold.number(nodes_made_.size());
  for (const std::uint64_t made : nodes_made_) fold.number(made);
  fold.number(rings_.size());
  for (const auto& [thread, ring] : rings_) {
    std::size_t entries = 0;
    const auto visit = [&parts = ring.parts](auto take) {
      for (const std::shared_ptr<Part>& part : parts) {
        if (!part) continue;
        for (const Entry& entry : *part) {
          if (entry.node != 0) take(entry);
        }
      }
    };
    visit([&](const Entry&) { ++entries; });
    fold.number(thread);
    fold.number(ring.used);
    fold.number(entries);
    Entry last;
    visit([&](const Entry& entry) {
      fold.difference(entry.node, last.node);
      fold.difference(entry.stack, last.stack);
      last = entry;
    });
  }
}

void ForwardStacks::restore(FoldReader& fold) {
  nodes_made_.clear();
  for (std::size_t left = fold.count(); left > 0; --left) nodes_made_.push_back(fold.number());
  nodes_made_.resize(std::min(nodes_made_.size(), fold.definitions().frame_count()));
  Rings rings;
  std::size_t parts = 0;
  const std::size_t threads = fold.count(3);
  if (threads > kThreads) throw DecodeError("more threads than are remembered");
  for (std::size_t index = 0; index < threads; ++index) {
    const std::uint64_t thread = fold.number();
    Ring& ring = rings[thread];
    ring.used = fold.number();
    Entry last;
    for (std::size_t left = fold.count(2); left > 0; --left) {
      last.node = fold.difference(last.node);
      last.stack = static_cast<std::uint32_t>(fold.difference(last.stack));
      if (last.node == 0) throw DecodeError("a node without a number");
      if (last.stack >= fold.definitions().frame_count()) continue;
      const std::size_t at = (last.node - 1) % kRemembered;
      if (at / kPart >= ring.parts.size()) ring.parts.resize(at / kPart + 1);
      std::shared_ptr<Part>& part = ring.parts[at / kPart];
      if (!part) {
        if (++parts > kMostParts) throw DecodeError("more nodes than are remembered");
        part = std::make_shared<Part>();
      }
      (*part)[at % kPart] = last;
    }
  }
  become(rings);
}

void Replay::save(FoldWriter& fold) const {
  const ReplayContext& seen = context_;
  fold.number(devices_.size());
  for (std::size_t index = 0; index < devices_.size(); ++index) {
    fold.signed_number(devices_[index].device_type());
    fold.signed_number(devices_[index].device_index());
    fold.flag(seen.is_complete[index]);
    fold.flag(seen.was_in_use[index]);
    fold.section([&](FoldWriter& inner) { devices_[index].save(inner, nullptr); });
  }
  fold.number(seen.device_of_location.size());
  for (const std::size_t device : seen.device_of_location) fold.number(device == SIZE_MAX ? 0 : device + 1);
  fold.flag(seen.had_loss);
  fold.signed_number(seen.time_ns);
  fold.number(seen.state.left);
  if (seen.state.left != 0) {
    fold.number(seen.state.device);
    fold.number(seen.state.sequence);
    fold.signed_number(seen.state.time_ns);
    fold.number(seen.state.events.size());
    for (const Event& event : seen.state.events) put_event(fold, event);
  }
  fold.section([&](FoldWriter& inner) { forward_.save(inner); });
}

void Replay::restore(FoldReader& fold) {
  const std::size_t devices = fold.count(5);
  if (devices > kMaxDevices) throw DecodeError("more devices than a process can have");
  for (std::size_t index = 0; index < devices; ++index) {
    const auto type = static_cast<std::int32_t>(fold.signed_number());
    const auto number = static_cast<std::int32_t>(fold.signed_number());
    if (number < -1 || number > kMaxDeviceIndex || find(type, number)) throw DecodeError("a device that cannot be");
    context_.is_complete.push_back(fold.flag());
    context_.was_in_use.push_back(fold.flag());
    FoldReader memory = fold.section();
    devices_.emplace_back(type, number, *definitions_);
    devices_.back().restore(memory, nullptr);
  }
  for (std::size_t left = fold.count(); left > 0; --left) {
    const std::uint64_t device = fold.below(devices + 1);
    context_.device_of_location.push_back(device == 0 ? SIZE_MAX : device - 1);
  }
  context_.had_loss = fold.flag();
  context_.time_ns = fold.signed_number();
  context_.state.left = fold.number();
  if (context_.state.left != 0) {
    context_.state.device = fold.below(devices);
    context_.state.sequence = fold.below(kMaxSequence);
    context_.state.time_ns = fold.signed_number();
    for (std::size_t left = fold.count(11); left > 0; --left) context_.state.events.push_back(read_event(fold));
  }
  FoldReader forward = fold.section();
  forward_.restore(forward);
}

void Replay::save_memory(FoldWriter& fold, const Replay& base) const {
  fold.number(devices_.size());
  fold.signed_number(context_.time_ns);
  for (std::size_t index = 0; index < devices_.size(); ++index) {
    // Devices are never given up, and keep their order.
    fold.section([&](FoldWriter& inner) { devices_[index].save(inner, &base.devices_[index]); });
  }
}

void Replay::restore_memory(FoldReader& fold, const Replay& base) {
  const std::uint64_t devices = fold.below(base.devices_.size() + 1);
  context_ = {};
  context_.time_ns = fold.signed_number();
  devices_.clear();
  for (std::uint64_t index = 0; index < devices; ++index) {
    const DeviceMemory& of = base.devices_[index];
    FoldReader memory = fold.section();
    devices_.emplace_back(of.device_type(), of.device_index(), *definitions_);
    devices_.back().restore(memory, &of);
    context_.is_complete.push_back(true);
    context_.was_in_use.push_back(base.context_.was_in_use[index]);
  }
}

}  // namespace alloctrace
