#include "fates.h"

#include <algorithm>

namespace alloctrace {

std::uint32_t Fates::thread_by_autograd_id(std::uint64_t id) {
  if (id == last_autograd_id_) return last_number_;
  const auto [known, is_new] = number_by_autograd_id_.try_emplace(id, static_cast<std::uint32_t>(threads_.size()));
  if (is_new) threads_.emplace_back();
  last_autograd_id_ = id;
  return last_number_ = known->second;
}

std::uint32_t Fates::thread_of(std::uint32_t event_thread) {
  if (event_thread < number_of_thread_.size() && number_of_thread_[event_thread] != UINT32_MAX) {
    return number_of_thread_[event_thread];
  }
  // The id of a thread whose definition was lost to damage may be any number.
  const bool is_known = event_thread < definitions_->thread_count();
  const ThreadRecord& thread = definitions_->thread(event_thread);
  const std::uint32_t number = thread_by_autograd_id(thread.autograd_id);
  if (thread.name.starts_with("pt_autograd")) threads_[number].is_of_engine = true;
  if (is_known) {
    if (thread.native_id == began_by_) {
      threads_[number].nodes_passed = std::max(threads_[number].nodes_passed, nodes_at_begin_);
    }
    number_of_thread_.resize(definitions_->thread_count(), UINT32_MAX);
    number_of_thread_[event_thread] = number;
  }
  return number;
}

void Fates::see(const Event& event, std::uint64_t sequence) {
  switch (event.kind) {
    case EventKind::kStep:
      ++steps_;
      break;
    case EventKind::kOom:
      last_refusal_ = sequence;
      break;
    case EventKind::kAlloc:
    case EventKind::kFreeRequested:
    case EventKind::kFreeCompleted:
    case EventKind::kMark:
    case EventKind::kRegionBegin:
    case EventKind::kRegionEnd:
      break;
    default:
      return;
  }
  const std::uint32_t number = thread_of(event.thread);
  if (event.node_type != 0) {
    const std::uint32_t maker = thread_by_autograd_id(event.node_thread);
    Thread& made = threads_[maker];
    if (!made.is_in_pass) {
      made.is_in_pass = true;
      ++made.passes;
      ++passes_;
      made.nodes_passed = made.nodes;
    }
    Thread& thread = threads_[number];
    if (thread.evaluated != maker || thread.evaluated_pass != made.passes) {
      thread.evaluated = maker;
      thread.evaluated_pass = made.passes;
      thread.nodes_before = thread.nodes;
    }
  } else if (threads_[number].is_in_pass && !is_under_engine(event)) {
    Thread& thread = threads_[number];
    thread.is_in_pass = false;
    // What checkpointing made again in the pass is over, too. An allocation may come after nodes of the next forward.
    thread.nodes_passed = event.kind == EventKind::kAlloc ? thread.nodes : event.sequence;
  }
  threads_[number].nodes = event.sequence;
}

void Fates::allocated(const Event& event, std::uint64_t sequence, const LifeChange& change) {
  if (change.device >= origins_.size()) origins_.resize(change.device + std::size_t{1});
  std::vector<Origin>& origins = origins_[change.device];
  const PieceIndex piece = change.piece;
  if (piece >= origins.size()) origins.resize(std::max<std::size_t>(piece + std::size_t{1}, origins.size() * 2));
  const std::uint32_t number = thread_of(event.thread);
  const Thread& thread = threads_[number];
  Origin& origin = origins[piece];
  origin.birth = sequence;
  origin.thread = number;
  origin.makes_nodes = false;
  const bool makes_nodes = event.sequence > thread.nodes_before;
  if (event.node_type != 0) {
    origin.maker = makes_nodes && !is_engine(event) ? Maker::kRecompute : Maker::kPass;
    origin.makes_nodes = makes_nodes;
    origin.thread = thread.evaluated;
  } else if (event.stack != 0 && kinds_.is_root_of_backward(event.stack)) {
    origin.maker = Maker::kRoot;
  } else if (is_under_engine(event)) {
    origin.maker = Maker::kPass;
    if (thread.evaluated != UINT32_MAX) origin.thread = thread.evaluated;
  } else {
    origin.maker = event.sequence > thread.nodes_passed ? Maker::kForward : Maker::kBeforeForward;
  }
  origin.passes = threads_[origin.thread].passes;
  origin.step = steps_;
  origin.allocations = change.allocations;
}

void Fates::ended(const Event& event, const LifeChange& change) {
  if (change.device >= origins_.size() || change.piece >= origins_[change.device].size()) return;
  Origin& origin = origins_[change.device][change.piece];
  if (origin.birth != change.alloc_sequence) return;  // it came with a state of the allocator
  const Fate fate = fate_at_free(origin, event, change);
  origin.birth = UINT64_MAX;
  set(change.alloc_sequence, fate);
  count(change.device, change.stack, change.node_type, change.bytes, fate);
}

Fate Fates::before_a_pass(const Origin& origin, const LifeChange& change) const {
  if (origin.step != steps_) return Fate::kLaterStep;
  return change.allocations == origin.allocations ? Fate::kBrief : Fate::kSameStep;
}

Fate Fates::fate_at_free(const Origin& origin, const Event& event, const LifeChange& change) {
  const bool by_engine = is_engine(event);
  const bool by_pass = by_engine || event.node_type != 0;
  const Thread& thread = threads_[origin.thread];
  const std::uint32_t passes = thread.passes - origin.passes;
  const bool is_cut_off = last_refusal_ > origin.birth;
  switch (origin.maker) {
    case Maker::kForward:
      if (by_pass) return Fate::kSaved;
      if (passes > 1) return Fate::kLong;
      if (is_cut_off) return Fate::kCutOffForward;
      return passes == 1 ? Fate::kOutlived : before_a_pass(origin, change);
    case Maker::kBeforeForward:
      if (passes > 1) return Fate::kLong;
      if (by_pass) return Fate::kInputSaved;
      if (is_cut_off) return Fate::kCutOff;
      return passes == 1 ? Fate::kInputHeld : before_a_pass(origin, change);
    case Maker::kRecompute:
      if (by_engine) return Fate::kSaved;
      return passes == 0 && is_under_engine(event) ? Fate::kPassing : Fate::kOutlived;
    case Maker::kPass:
      if (passes == 0 && thread.is_in_pass) return by_engine ? Fate::kPassing : Fate::kPassingProgram;
      return origin.makes_nodes && by_pass ? Fate::kSaved : Fate::kLeftByPass;
    case Maker::kRoot:
      return Fate::kPassing;
  }
  return Fate::kUnknown;
}

Fate Fates::fate_at_end(const Origin& origin) const {
  const Thread& thread = threads_[origin.thread];
  const std::uint32_t passes = thread.passes - origin.passes;
  switch (origin.maker) {
    case Maker::kForward:
      if (passes > 1) return Fate::kLong;
      return passes == 0 || thread.is_in_pass ? Fate::kCutOffForward : Fate::kOutlived;
    case Maker::kBeforeForward:
      return passes > 1 ? Fate::kLong : Fate::kCutOff;
    case Maker::kRecompute:
      return Fate::kCutOffForward;
    case Maker::kPass:
      return passes == 0 && thread.is_in_pass ? Fate::kCutOff : Fate::kLeftByPass;
    case Maker::kRoot:
      return Fate::kPassing;
  }
  return Fate::kUnknown;
}

void Fates::finish(const std::vector<DeviceMemory>& devices) {
  for (std::size_t device = 0; device < devices.size() && device < origins_.size(); ++device) {
    devices[device].for_each_allocated([&](const Piece& piece) {
      const PieceIndex index = devices[device].index_of(piece);
      if (index >= origins_[device].size() || origins_[device][index].birth != piece.alloc_sequence) return;
      set(piece.alloc_sequence, fate_at_end(origins_[device][index]));
    });
  }
  origins_ = {};
}

void Fates::set(std::uint64_t birth, Fate fate) {
  const std::uint64_t number = birth / kPageEvents;
  if (number != last_page_) {
    std::unique_ptr<Page>& page = pages_[number];
    if (!page) page = std::make_unique<Page>();
    last_page_ = number;
    last_ = page.get();
  }
  const std::uint64_t at = birth % kPageEvents;
  std::uint8_t& two = (*last_)[at / 2];
  const unsigned shift = at % 2 * 4;
  two = static_cast<std::uint8_t>((two & ~(0xfu << shift)) | static_cast<unsigned>(fate) << shift);
}

Fate Fates::of(std::uint64_t birth) const {
  if (const auto folded = folded_.find(birth); folded != folded_.end()) return folded->second;
  const auto page = pages_.find(birth / kPageEvents);
  if (page == pages_.end()) return Fate::kUnknown;
  const std::uint64_t at = birth % kPageEvents;
  return static_cast<Fate>((*page->second)[at / 2] >> at % 2 * 4 & 0xf);
}

void Fates::count(std::size_t device, std::uint32_t stack, std::uint16_t node_type, std::uint64_t bytes, Fate fate) {
  if (fate == Fate::kCutOff || fate == Fate::kCutOffForward) return;
  if (++counted_ > kAllCounted && counted_ % kSample != 0) return;
  const auto [row, is_new] = places_.insert(place(device, stack, node_type));
  if (is_new) {
    *row = static_cast<std::uint32_t>(bytes_.size());
    bytes_.emplace_back();
    keys_.push_back(place(device, stack, node_type));
  }
  bytes_[*row][static_cast<std::size_t>(fate)] += bytes;
}

Fate Fates::usual(std::size_t device, std::uint32_t stack, std::uint16_t node_type) const {
  const std::uint32_t* const row = places_.find(place(device, stack, node_type));
  if (!row) return Fate::kUnknown;
  const auto most = std::max_element(bytes_[*row].begin(), bytes_[*row].end());
  return *most == 0 ? Fate::kUnknown : static_cast<Fate>(most - bytes_[*row].begin());
}

}  // namespace alloctrace
