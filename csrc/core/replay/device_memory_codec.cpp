// DeviceMemory, ForwardStacks and Replay in the compacted part of a trace.
#include <algorithm>
#include <bit>
#include <vector>

#include "../base/hash.h"
#include "replay.h"

namespace alloctrace {
namespace {

// Flags in the first byte of a piece. Those of piece.h are absent for a piece of a known kind.
constexpr std::uint8_t kKnownKind = 0x20, kAlone = 0x40;
constexpr std::uint64_t kMaxSegments = UINT32_MAX;

void put_neighbour(CompactionWriter& out, PieceIndex value, PieceIndex of) {
  value == kNoPiece ? out.number(0) : out.difference(value, of);  // 0 is free: no piece is its own neighbour
}

PieceIndex neighbour(CompactionReader& in, PieceIndex of) {
  const std::uint64_t difference = in.number();
  return difference == 0 ? kNoPiece : static_cast<PieceIndex>(add_zigzag_delta(of, difference));
}

bool equal(const Piece& a, const Piece& b) {
  if (a.state != b.state) return false;
  if (a.state == PieceState::kUnused) return true;
  return a.address == b.address && a.size == b.size && a.requested == b.requested &&
         a.alloc_sequence == b.alloc_sequence && a.alloc_ns == b.alloc_ns && a.previous == b.previous &&
         a.next == b.next && a.segment == b.segment && a.stack == b.stack && a.thread == b.thread &&
         a.node_type == b.node_type && a.is_of_backward == b.is_of_backward && a.is_older == b.is_older;
}

std::uint8_t flags_of(const Piece& piece) {
  return static_cast<std::uint8_t>(static_cast<std::uint8_t>(piece.state) | (piece.is_of_backward ? kBackwardBit : 0) |
                                   (piece.is_older ? kOlderBit : 0));
}

// A kind is all of a piece but address, time and neighbours. Most pieces share their kind with others, and take half
// the space. Writer and reader number the kinds in the order of their first pieces.
constexpr std::size_t kMaxKinds = 1 << 14;  // maximum number of two bytes

bool have_equal_kind(const Piece& a, const Piece& b) {
  return a.size == b.size && a.requested == b.requested && a.segment == b.segment && a.stack == b.stack &&
         a.thread == b.thread && a.node_type == b.node_type && flags_of(a) == flags_of(b);
}

class PieceWriter {
 public:
  explicit PieceWriter(CompactionWriter& out) : out_(&out) {}

  void put(const Piece& piece, PieceIndex index) {
    if (piece.state == PieceState::kUnused) return out_->byte(static_cast<std::uint8_t>(piece.state));
    const bool is_alone = piece.previous == kNoPiece && piece.next == kNoPiece;
    const std::uint8_t flags = is_alone ? kAlone : 0;
    std::uint16_t& end_of_kind = find(piece);
    if (end_of_kind != 0) {
      const std::size_t number = end_of_kind - std::size_t{1};
      out_->byte(flags | kKnownKind);
      out_->number(number);
      put_allocation(piece, kinds_[number].address);
    } else {
      out_->byte(flags | flags_of(piece));
      put_allocation(piece, new_kind_address_);
      out_->number(piece.size);
      out_->difference(piece.requested, piece.size);
      out_->number(piece.segment);
      out_->stack(piece.stack);
      out_->number(piece.thread);
      out_->number(piece.node_type);
      if (kinds_.size() < kMaxKinds) {
        kinds_.push_back(piece);
        end_of_kind = static_cast<std::uint16_t>(kinds_.size());
      }
    }
    if (!is_alone) {
      put_neighbour(*out_, piece.previous, index);
      put_neighbour(*out_, piece.next, index);
    }
  }

 private:
  void put_allocation(const Piece& piece, std::uint64_t& last_address) {
    out_->difference(piece.address, last_address);
    out_->difference(piece.alloc_sequence, last_sequence_);
    out_->difference(static_cast<std::uint64_t>(piece.alloc_ns), last_ns_);
    last_address = piece.address;
    last_sequence_ = piece.alloc_sequence;
    last_ns_ = static_cast<std::uint64_t>(piece.alloc_ns);
  }

  // Return the slot of the piece's kind: its number plus 1, or 0 if the kind is new.
  std::uint16_t& find(const Piece& piece) {
    const std::uint64_t size_hash = extend_hash(piece.size, piece.requested);
    const std::uint64_t hash = extend_hash(size_hash, piece.stack | std::uint64_t{piece.segment} << 32);
    std::size_t slot = seeded_hash(hash ^ piece.thread) % slots_.size();
    while (slots_[slot] != 0 && !have_equal_kind(kinds_[slots_[slot] - std::size_t{1}], piece)) {
      slot = (slot + 1) % slots_.size();
    }
    return slots_[slot];
  }

  CompactionWriter* out_;
  std::vector<std::uint16_t> slots_ = std::vector<std::uint16_t>(2 * kMaxKinds);  // never more than half full
  std::vector<Piece> kinds_;                                                      // last piece of each kind
  std::uint64_t new_kind_address_ = 0, last_sequence_ = 0, last_ns_ = 0;
};

class PieceParser {
 public:
  PieceParser(CompactionReader& in, std::size_t segments) : in_(&in), segments_(segments) {}

  Piece read(PieceIndex index) {
    const std::uint8_t first = in_->byte();
    if ((first & kStateBits) > static_cast<std::uint8_t>(PieceState::kUnused))
      throw DecodeError("a block without a state");
    if (static_cast<PieceState>(first & kStateBits) == PieceState::kUnused) return {};
    Piece piece;
    if ((first & kKnownKind) != 0) {
      Piece& kind = kinds_[static_cast<std::size_t>(in_->below(kinds_.size()))];
      read_allocation(kind, kind.address);
      piece = kind;
    } else {
      piece.state = static_cast<PieceState>(first & kStateBits);
      piece.is_of_backward = (first & kBackwardBit) != 0;
      piece.is_older = (first & kOlderBit) != 0;
      read_allocation(piece, new_kind_address_);
      piece.size = in_->number();
      piece.requested = std::min(in_->difference(piece.size), kMaxBlockBytes);
      piece.segment = static_cast<std::uint32_t>(in_->below(segments_));
      piece.stack = in_->stack();
      piece.thread = in_->number32();
      piece.node_type =
          static_cast<std::uint16_t>(in_->below(std::max<std::size_t>(in_->definitions().node_type_count(), 1)));
      new_kind_address_ = piece.address;
      if (kinds_.size() < kMaxKinds) kinds_.push_back(piece);
    }
    if ((first & kAlone) == 0) {
      piece.previous = neighbour(*in_, index);
      piece.next = neighbour(*in_, index);
    }
    return piece;
  }

 private:
  void read_allocation(Piece& piece, std::uint64_t last_address) {
    piece.address = in_->difference(last_address);
    piece.alloc_sequence = last_sequence_ = std::min(in_->difference(last_sequence_), kMaxSequence);
    last_ns_ = in_->difference(last_ns_);
    piece.alloc_ns = static_cast<std::int64_t>(last_ns_);
  }

  CompactionReader* in_;
  const std::size_t segments_;
  std::vector<Piece> kinds_;  // last piece of each kind, without neighbours
  std::uint64_t new_kind_address_ = 0, last_sequence_ = 0, last_ns_ = 0;
};

// Write runs of pieces that are equal in the base, and of changed pieces, by turns.
void put_pieces(CompactionWriter& out, const Pieces& pieces, const Pieces* base) {
  const auto is_equal = [&](std::size_t at) { return base && at < base->size() && equal(pieces[at], (*base)[at]); };
  PieceWriter writer(out);
  out.number(pieces.size());
  for (std::size_t at = 0; at < pieces.size();) {
    const std::size_t equal_begin = at;
    while (at < pieces.size() && is_equal(at)) ++at;
    const std::size_t changed_begin = at;
    while (at < pieces.size() && !is_equal(at)) ++at;
    out.number(changed_begin - equal_begin);
    out.number(at - changed_begin);
    for (std::size_t changed = changed_begin; changed < at; ++changed) {
      writer.put(pieces[changed], static_cast<PieceIndex>(changed));
    }
  }
}

void read_pieces(CompactionReader& in, Pieces& pieces, const Pieces* base, std::size_t segments) {
  const std::uint64_t count = in.below(kNoPiece);
  PieceParser parser(in, segments);
  pieces.clear();
  pieces.reserve(std::min<std::uint64_t>(count, in.remaining() + (base ? base->size() : 0)));
  while (pieces.size() < count) {
    const std::uint64_t unchanged = in.number();
    const std::size_t left_in_base = base && base->size() > pieces.size() ? base->size() - pieces.size() : 0;
    if (unchanged > left_in_base || unchanged > count - pieces.size())
      throw DecodeError("more unchanged blocks than there are");
    for (std::uint64_t at = 0; at < unchanged; ++at) {
      const Piece& piece = (*base)[pieces.size()];
      if (piece.state != PieceState::kUnused && piece.segment >= segments) throw DecodeError("a block of no segment");
      pieces.push_back(piece);
    }
    const std::size_t changed = in.count();
    if (changed > count - pieces.size() || (unchanged == 0 && changed == 0))
      throw DecodeError("more blocks than there are");
    for (std::size_t at = 0; at < changed; ++at) {
      pieces.push_back(parser.read(static_cast<PieceIndex>(pieces.size())));
    }
  }
}

// Return whether neighbours point to each other with ascending addresses, so that a walk along them ends.
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

// Return whether each segment has one chain of pieces: removing a chain frees the segment's index. Needs are_linked().
bool has_one_chain_each(const Pieces& pieces, std::size_t segments) {
  std::vector<PieceIndex> head_of(segments, kNoPiece);
  for (PieceIndex head = 0; head < pieces.size(); ++head) {
    if (pieces[head].state == PieceState::kUnused || pieces[head].previous != kNoPiece) continue;
    for (PieceIndex index = head; index != kNoPiece; index = pieces[index].next) {
      PieceIndex& other = head_of[pieces[index].segment];
      if (pieces[index].segment != 0 && other != kNoPiece && other != head) return false;
      other = head;
    }
  }
  return true;
}

void put_set(CompactionWriter& out, const std::set<std::uint64_t>& values) {
  out.number(values.size());
  std::uint64_t last = 0;
  for (const std::uint64_t value : values) {
    out.difference(value, last);
    last = value;
  }
}

std::set<std::uint64_t> read_set(CompactionReader& in) {
  std::set<std::uint64_t> values;
  std::uint64_t last = 0;
  for (std::size_t left = in.count(); left > 0; --left) values.insert(last = in.difference(last));
  return values;
}

void put_settings(CompactionWriter& out, const AllocatorSettings& settings) {
  for (const std::uint64_t divisions : settings.roundup_power2_divisions) out.number(divisions);
  out.number(settings.max_split_size);
  out.number(settings.large_segment_size);
  out.number(settings.max_non_split_rounding_size);
  out.number(std::bit_cast<std::uint64_t>(settings.garbage_collection_threshold));
  out.flag(settings.expandable_segments);
}

AllocatorSettings read_settings(CompactionReader& in) {
  AllocatorSettings settings;
  for (std::uint64_t& divisions : settings.roundup_power2_divisions) divisions = in.number();
  settings.max_split_size = in.number();
  settings.large_segment_size = in.number();
  settings.max_non_split_rounding_size = in.number();
  settings.garbage_collection_threshold = std::bit_cast<double>(in.number());
  settings.expandable_segments = in.flag();
  settings.clamp();
  return settings;
}

}  // namespace

void DeviceMemory::save(CompactionWriter& out, const DeviceMemory* base) const {
  put_settings(out, rules_.settings);
  out.flag(rules_.reports_segments);
  out.number(rules_.restoring_thread);
  for (const auto* pools : {&rules_.unsplit_pools, &rules_.inactive_pools, &rules_.custom_pools}) put_set(out, *pools);
  out.number(segments_.size());
  for (const Segment& segment : segments_) {
    out.number(segment.origin);
    out.number(segment.unit);
    out.number(segment.location);
    out.byte(static_cast<std::uint8_t>((segment.is_large ? 1 : 0) | (segment.is_large_known ? 2 : 0) |
                                       (segment.is_expandable ? 4 : 0)));
  }
  out.number(unused_segments_.size());
  for (const std::uint32_t index : unused_segments_) out.number(index);
  put_pieces(out, pieces_, base ? &base->pieces_ : nullptr);
  out.number(totals_.reserved);
  out.flag(history_.is_touched);
  out.number(history_.unmatched_frees);
  out.number(history_.missed_frees);
  put_set(out, history_.unmatched_requests);
  // Only stacks with allocations since the base.
  std::vector<std::uint32_t> changed;
  const auto totals_of = [](const DeviceMemory* memory, std::uint32_t stack) {
    return memory && stack < memory->stacks_.size() ? memory->stacks_[stack] : StackTotals{};
  };
  const std::size_t count = std::max(stacks_.size(), base ? base->stacks_.size() : 0);
  for (std::uint32_t stack = 0; stack < count; ++stack) {
    if (totals_of(this, stack).allocations != totals_of(base, stack).allocations) changed.push_back(stack);
  }
  out.number(changed.size());
  for (const std::uint32_t stack : changed) {
    const StackTotals totals = totals_of(this, stack);
    out.stack(stack);
    out.number(totals.allocations);
    out.number(totals.bytes);
    out.number(totals.largest);
  }
}

void DeviceMemory::restore(CompactionReader& in, const DeviceMemory* base) {
  rules_.settings = read_settings(in);
  rules_.reports_segments = in.flag();
  rules_.restoring_thread = in.number32();
  for (auto* pools : {&rules_.unsplit_pools, &rules_.inactive_pools, &rules_.custom_pools}) *pools = read_set(in);
  const std::size_t segments = in.count(4);
  if (segments == 0 || segments > kMaxSegments) throw DecodeError("a device without a list of segments");
  segments_.clear();
  for (std::size_t index = 0; index < segments; ++index) {
    Segment segment;
    segment.origin = in.number();
    segment.unit = std::max<std::uint64_t>(in.number(), 1);
    segment.location = in.number32();
    const std::uint8_t flags = in.byte();
    segment.is_large = (flags & 1) != 0;
    segment.is_large_known = (flags & 2) != 0;
    segment.is_expandable = (flags & 4) != 0;
    if (segment.location >= in.definitions().location_count()) segment.location = 0;
    segments_.push_back(segment);
  }
  if (segments_.front().is_expandable) throw DecodeError("an expandable segment in place of no segment");
  unused_segments_.clear();
  for (std::size_t left = in.count(); left > 0; --left) {
    unused_segments_.push_back(static_cast<std::uint32_t>(in.below(segments)));
  }
  read_pieces(in, pieces_, base ? &base->pieces_ : nullptr, segments);
  if (!are_linked(pieces_) || !has_one_chain_each(pieces_, segments))
    throw DecodeError("blocks that are not next to each other");
  std::vector<bool> is_used(segments);
  is_used.front() = true;
  for (const Piece& piece : pieces_) {
    if (piece.state != PieceState::kUnused) is_used[piece.segment] = true;
  }
  for (const std::uint32_t unused : unused_segments_) {
    if (is_used[unused]) throw DecodeError("a used segment in the list of unused segments");
    is_used[unused] = true;
  }
  if (!rebuild(in.number())) throw DecodeError("two blocks at one address");
  history_.is_touched = in.flag();
  history_.unmatched_frees = in.number();
  history_.missed_frees = in.number();
  history_.unmatched_requests = read_set(in);
  stacks_.clear();
  if (base) stacks_ = base->stacks_;
  for (std::size_t left = in.count(4); left > 0; --left) {
    StackTotals* const totals = totals_of(in.stack());
    const std::uint64_t allocations = in.number(), bytes = in.number(), largest = in.number();
    if (totals) *totals = {allocations, bytes, std::min(largest, kMaxBlockBytes)};
  }
}

PackedMemory DeviceMemory::packed() const {
  CompactionWriter out(*definitions_);
  save(out, nullptr);
  return {device_type_, device_index_, out.bytes()};
}

void DeviceMemory::unpack(const PackedMemory& packed) {
  device_type_ = packed.device_type;
  device_index_ = packed.device_index;
  CompactionReader in(ByteReader(packed.bytes), *definitions_);
  restore(in, nullptr);
}

void ForwardStacks::save(CompactionWriter& out) const {
  out.number(nodes_created_.size());
  for (const std::uint64_t nodes : nodes_created_) out.number(nodes);
  out.number(rings_.size());
  for (const auto& [thread, ring] : rings_) {
    std::size_t entries = 0;
    const auto visit = [&parts = ring.parts](auto use) {
      for (const std::shared_ptr<Part>& part : parts) {
        if (!part) continue;
        for (const Entry& entry : *part) {
          if (entry.node != 0) use(entry);
        }
      }
    };
    visit([&](const Entry&) { ++entries; });
    out.number(thread);
    out.number(ring.used);
    out.number(entries);
    Entry last;
    visit([&](const Entry& entry) {
      out.difference(entry.node, last.node);
      out.difference(entry.stack, last.stack);
      last = entry;
    });
  }
}

void ForwardStacks::restore(CompactionReader& in) {
  nodes_created_.clear();
  for (std::size_t left = in.count(); left > 0; --left) nodes_created_.push_back(in.number());
  nodes_created_.resize(std::min(nodes_created_.size(), in.definitions().frame_count()));
  Rings rings;
  std::size_t parts = 0;
  const std::size_t threads = in.count(3);
  if (threads > kMaxThreads) throw DecodeError("too many threads");
  for (std::size_t index = 0; index < threads; ++index) {
    const std::uint64_t thread = in.number();
    Ring& ring = rings[thread];
    ring.used = in.number();
    Entry last;
    for (std::size_t left = in.count(2); left > 0; --left) {
      last.node = in.difference(last.node);
      last.stack = static_cast<std::uint32_t>(in.difference(last.stack));
      if (last.node == 0) throw DecodeError("a node without a number");
      if (last.stack >= in.definitions().frame_count()) continue;
      const std::size_t at = (last.node - 1) % kNodesPerThread;
      if (at / kNodesPerPart >= ring.parts.size()) ring.parts.resize(at / kNodesPerPart + 1);
      std::shared_ptr<Part>& part = ring.parts[at / kNodesPerPart];
      if (!part) {
        if (++parts > kMaxParts) throw DecodeError("too many nodes");
        part = std::make_shared<Part>();
      }
      (*part)[at % kNodesPerPart] = last;
    }
  }
  restore(rings);
}

void Replay::save(CompactionWriter& out) const {
  const ReplayContext& seen = context_;
  out.number(devices_.size());
  for (std::size_t index = 0; index < devices_.size(); ++index) {
    out.signed_number(devices_[index].device_type());
    out.signed_number(devices_[index].device_index());
    out.flag(seen.is_complete[index]);
    out.flag(seen.was_in_use[index]);
    out.section([&](CompactionWriter& inner) { devices_[index].save(inner, nullptr); });
  }
  out.number(seen.device_of_location.size());
  for (const std::size_t device : seen.device_of_location) out.number(device == SIZE_MAX ? 0 : device + 1);
  out.flag(seen.had_loss);
  out.signed_number(seen.time_ns);
  out.number(seen.state.left);
  if (seen.state.left != 0) {
    out.number(seen.state.device);
    out.number(seen.state.sequence);
    out.signed_number(seen.state.time_ns);
    out.number(seen.state.events.size());
    for (const Event& event : seen.state.events) put_event(out, event);
  }
  out.section([&](CompactionWriter& inner) { forward_.save(inner); });
}

void Replay::restore(CompactionReader& in) {
  const std::size_t devices = in.count(5);
  if (devices > kMaxDevices) throw DecodeError("too many devices");
  for (std::size_t index = 0; index < devices; ++index) {
    const auto type = static_cast<std::int32_t>(in.signed_number());
    const auto number = static_cast<std::int32_t>(in.signed_number());
    if (number < -1 || number > kMaxDeviceIndex || find(type, number)) throw DecodeError("an invalid device");
    context_.is_complete.push_back(in.flag());
    context_.was_in_use.push_back(in.flag());
    CompactionReader memory = in.section();
    devices_.emplace_back(type, number, *definitions_);
    devices_.back().restore(memory, nullptr);
  }
  for (std::size_t left = in.count(); left > 0; --left) {
    const std::uint64_t device = in.below(devices + 1);
    context_.device_of_location.push_back(device == 0 ? SIZE_MAX : device - 1);
  }
  context_.had_loss = in.flag();
  context_.time_ns = in.signed_number();
  context_.state.left = in.number();
  if (context_.state.left != 0) {
    context_.state.device = in.below(devices);
    context_.state.sequence = in.below(kMaxSequence);
    context_.state.time_ns = in.signed_number();
    for (std::size_t left = in.count(11); left > 0; --left) context_.state.events.push_back(read_event(in));
  }
  CompactionReader forward = in.section();
  forward_.restore(forward);
}

void Replay::save_memory(CompactionWriter& out, const Replay& base) const {
  out.number(devices_.size());
  out.signed_number(context_.time_ns);
  for (std::size_t index = 0; index < devices_.size(); ++index) {
    // Devices are never removed or reordered.
    out.section([&](CompactionWriter& inner) { devices_[index].save(inner, &base.devices_[index]); });
  }
}

void Replay::restore_memory(CompactionReader& in, const Replay& base) {
  const std::uint64_t devices = in.below(base.devices_.size() + 1);
  context_ = {};
  context_.time_ns = in.signed_number();
  devices_.clear();
  for (std::uint64_t index = 0; index < devices; ++index) {
    const DeviceMemory& of = base.devices_[index];
    CompactionReader memory = in.section();
    devices_.emplace_back(of.device_type(), of.device_index(), *definitions_);
    devices_.back().restore(memory, &of);
    context_.is_complete.push_back(true);
    context_.was_in_use.push_back(base.context_.was_in_use[index]);
  }
}

}  // namespace alloctrace
