#include "lifetimes.h"

#include <algorithm>

namespace alloctrace {

std::uint32_t Lifetimes::thread_by_autograd_id(std::uint64_t id) {
  if (id == last_autograd_id_) return last_index_;
  const auto [entry, is_new] = index_by_autograd_id_.try_emplace(id, static_cast<std::uint32_t>(threads_.size()));
  if (is_new) threads_.emplace_back();
  last_autograd_id_ = id;
  return last_index_ = entry->second;
}

std::uint32_t Lifetimes::thread_of(std::uint32_t event_thread) {
  if (event_thread < thread_index_.size() && thread_index_[event_thread] != UINT32_MAX) {
    return thread_index_[event_thread];
  }
  // Without a definition, in a corrupt trace, the id of a thread may be any number.
  const bool is_defined = event_thread < definitions_->thread_count();
  const ThreadRecord& thread = definitions_->thread(event_thread);
  const std::uint32_t number = thread_by_autograd_id(thread.autograd_id);
  if (thread.name.starts_with("pt_autograd")) threads_[number].is_of_engine = true;
  if (is_defined) {
    if (thread.native_id == first_thread_) {
      threads_[number].nodes_passed = std::max(threads_[number].nodes_passed, nodes_at_begin_);
    }
    thread_index_.resize(definitions_->thread_count(), UINT32_MAX);
    thread_index_[event_thread] = number;
  }
  return number;
}

void Lifetimes::update(const Event& event, std::uint64_t sequence) {
  switch (event.kind) {
    case EventKind::kStep:
      ++steps_;
      break;
    case EventKind::kOom:
      last_oom_ = sequence;
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
  // Autograd's threads have no stacks of their own, and no stack shows no call.
  if (event.stack != 0 && event.node_type == 0 && !is_under_engine(event)) update_call(event, threads_[number]);
  if (is_in_node(event)) {
    const std::uint32_t node_thread = thread_by_autograd_id(event.node_thread);
    Thread& creator = threads_[node_thread];
    if (!creator.is_in_pass) {
      creator.is_in_pass = true;
      ++creator.passes;
      ++passes_;
      creator.nodes_passed = creator.nodes;
    }
    Thread& thread = threads_[number];
    if (thread.evaluated_thread != node_thread || thread.evaluated_pass != creator.passes) {
      thread.evaluated_thread = node_thread;
      thread.evaluated_pass = creator.passes;
      thread.nodes_before = thread.nodes;
    }
  } else if (threads_[number].is_in_pass && !is_under_engine(event)) {
    Thread& thread = threads_[number];
    thread.is_in_pass = false;
    // Nodes of recomputed forwards are over, too. Before an allocation, the next forward may have created nodes.
    thread.nodes_passed = event.kind == EventKind::kAlloc ? thread.nodes : event.sequence;
  }
  threads_[number].has_new_node = event.sequence > threads_[number].nodes;
  threads_[number].nodes = event.sequence;
}

void Lifetimes::update_call(const Event& event, Thread& thread) {
  const bool is_in_call = kinds_.is_in_module(event.stack);
  if (is_in_call && !thread.is_in_call) {
    ++thread.calls;
    thread.nodes_before_call = thread.nodes;
    thread.last_allocation = UINT64_MAX;
  }
  const bool has_last = thread.last_device < origins_.size() && thread.last_piece < origins_[thread.last_device].size();
  if (!is_in_call && thread.is_in_call && has_last && thread.last_allocation != UINT64_MAX) {
    Origin& last = origins_[thread.last_device][thread.last_piece];
    if (last.alloc_sequence == thread.last_allocation) last.is_last_of_call = true;
  }
  thread.is_in_call = is_in_call;
}

// Return the round in which a stack of frames allocates; 0 without frames, which unrelated allocations share.
std::uint32_t Lifetimes::begin_round(std::uint32_t stack, std::uint32_t thread) {
  if (stack == 0 || stack >= definitions_->frame_count()) return 0;
  if (stack >= rounds_.size()) rounds_.resize(definitions_->frame_count());
  Rounds& rounds = rounds_[stack];
  const std::uint32_t begun = threads_[thread].calls + threads_[thread].passes;
  if (rounds.thread != thread || rounds.begun != begun) ++rounds.count;
  rounds.thread = thread;
  rounds.begun = begun;
  return rounds.count;
}

void Lifetimes::begin_lifetime(const Event& event, std::uint64_t sequence, const LifetimeChange& change) {
  if (change.device >= origins_.size()) origins_.resize(change.device + std::size_t{1});
  std::vector<Origin>& origins = origins_[change.device];
  const PieceIndex piece = change.piece;
  if (piece >= origins.size()) origins.resize(std::max<std::size_t>(piece + std::size_t{1}, origins.size() * 2));
  const std::uint32_t number = thread_of(event.thread);
  const Thread& thread = threads_[number];
  Origin& origin = origins[piece];
  origin.alloc_sequence = sequence;
  origin.thread = number;
  origin.makes_nodes = false;
  origin.is_in_call = event.stack != 0 && thread.is_in_call && kinds_.is_in_module(event.stack);
  origin.is_in_graph = origin.is_in_call && event.sequence > thread.nodes_before_call;
  origin.is_of_node = thread.has_new_node;
  origin.is_last_of_call = false;
  origin.calls = thread.calls;
  origin.round = event.node_type == 0 ? begin_round(change.stack, number) : 0;
  if (origin.is_in_call) {
    threads_[number].last_device = change.device;
    threads_[number].last_piece = piece;
    threads_[number].last_allocation = sequence;
  }
  const bool makes_nodes = event.sequence > thread.nodes_before;
  if (is_in_node(event)) {
    origin.phase = makes_nodes && !is_engine(event) ? Phase::kRecompute : Phase::kPass;
    origin.makes_nodes = makes_nodes;
    origin.thread = thread.evaluated_thread;
  } else if (event.stack != 0 && kinds_.is_root_of_backward(event.stack)) {
    origin.phase = Phase::kRoot;
  } else if (is_under_engine(event)) {
    origin.phase = Phase::kPass;
    if (thread.evaluated_thread != UINT32_MAX) origin.thread = thread.evaluated_thread;
  } else {
    const bool is_in_forward = origin.is_in_call || event.sequence > thread.nodes_passed;
    origin.phase = is_in_forward ? Phase::kForward : Phase::kBeforeForward;
  }
  origin.passes = threads_[origin.thread].passes;
  origin.step = steps_;
  origin.allocations = change.allocations;
}

void Lifetimes::end_lifetime(const Event& event, const LifetimeChange& change) {
  if (change.device >= origins_.size() || change.piece >= origins_[change.device].size()) return;
  Origin& origin = origins_[change.device][change.piece];
  if (origin.alloc_sequence != change.alloc_sequence) return;  // the block is from a state of the allocator
  const Lifetime lifetime = lifetime_at_free(origin, event, change);
  origin.alloc_sequence = UINT64_MAX;
  store(change.alloc_sequence, lifetime);
  count(change.device, change.stack, change.node_type, change.bytes, lifetime);
}

// Return the lifetime of a block that the program frees before a pass.
Lifetime Lifetimes::lifetime_before_pass(const Origin& origin, const Event& event, const LifetimeChange& change) {
  const Thread& thread = threads_[origin.thread];
  const std::uint32_t calls = thread.calls - origin.calls;
  const bool is_in_own_call = origin.is_in_call && calls == 0 && thread.is_in_call;
  if (thread.calls != 0 && !(is_in_own_call && thread_of(event.thread) == origin.thread)) {
    if (origin.is_in_graph && !origin.is_last_of_call) return Lifetime::kSaved;
    if (is_kept(origin, change.stack)) return Lifetime::kOutlived;
    if (origin.is_in_call && calls != 0 && is_replaced(origin, change.stack)) return Lifetime::kOutlived;
    if (!origin.is_in_call && calls != 0 && !origin.is_of_node) return Lifetime::kInputHeld;
  }
  if (origin.step != steps_) return Lifetime::kLaterStep;
  return change.allocations == origin.allocations ? Lifetime::kBrief : Lifetime::kSameStep;
}

Lifetime Lifetimes::lifetime_at_free(const Origin& origin, const Event& event, const LifetimeChange& change) {
  const bool by_engine = is_engine(event);
  const bool by_pass = by_engine || is_in_node(event);
  const Thread& thread = threads_[origin.thread];
  const std::uint32_t passes = thread.passes - origin.passes;
  const bool is_cut_off = last_oom_ > origin.alloc_sequence;
  // An optimizer that evaluates the model again and again within its step, such as LBFGS, holds vectors meanwhile.
  if (steps_ != 0 && origin.step == steps_ && !by_pass && kinds_.is_of_optimizer(change.stack)) {
    return Lifetime::kSameStep;
  }
  switch (origin.phase) {
    case Phase::kForward:
      if (by_pass) return Lifetime::kSaved;
      if (passes > 1) return origin.is_in_call || is_kept(origin, change.stack) ? Lifetime::kOutlived : Lifetime::kLong;
      if (is_cut_off) return cut_off_forward(origin);
      return passes == 1 ? Lifetime::kOutlived : lifetime_before_pass(origin, event, change);
    case Phase::kBeforeForward:
      if (passes > 1 && is_kept(origin, change.stack)) return Lifetime::kOutlived;
      if (by_pass) return Lifetime::kInputSaved;
      if (passes > 1) return is_replaced(origin, change.stack) ? Lifetime::kInputHeld : Lifetime::kLong;
      if (is_cut_off) return Lifetime::kCutOff;
      return passes == 1 ? Lifetime::kInputHeld : lifetime_before_pass(origin, event, change);
    case Phase::kRecompute:
      if (by_engine) return Lifetime::kSaved;
      return passes == 0 && is_under_engine(event) ? Lifetime::kPassing : Lifetime::kOutlived;
    case Phase::kPass:
      if (passes == 0 && thread.is_in_pass) return by_engine ? Lifetime::kPassing : Lifetime::kPassingProgram;
      return origin.makes_nodes && by_pass ? Lifetime::kSaved : Lifetime::kLeftByPass;
    case Phase::kRoot:
      return Lifetime::kPassing;
  }
  return Lifetime::kUnknown;
}

Lifetime Lifetimes::lifetime_at_end(const Origin& origin, std::uint32_t stack) const {
  const Thread& thread = threads_[origin.thread];
  const std::uint32_t passes = thread.passes - origin.passes;
  switch (origin.phase) {
    case Phase::kForward:
      if (is_kept(origin, stack) || (passes > 1 && origin.is_in_call)) return Lifetime::kOutlived;
      if (passes > 1) return Lifetime::kLong;
      return passes == 0 || thread.is_in_pass ? cut_off_forward(origin) : Lifetime::kOutlived;
    case Phase::kBeforeForward:
      if (is_kept(origin, stack)) return Lifetime::kOutlived;
      return passes > 1 ? Lifetime::kLong : Lifetime::kCutOff;
    case Phase::kRecompute:
      return Lifetime::kCutOffForward;
    case Phase::kPass:
      return passes == 0 && thread.is_in_pass ? Lifetime::kCutOff : Lifetime::kLeftByPass;
    case Phase::kRoot:
      return Lifetime::kPassing;
  }
  return Lifetime::kUnknown;
}

void Lifetimes::finish(const std::vector<DeviceMemory>& devices) {
  for (std::size_t device = 0; device < devices.size() && device < origins_.size(); ++device) {
    devices[device].for_each_allocated([&](const Piece& piece) {
      const PieceIndex index = devices[device].index_of(piece);
      if (index >= origins_[device].size() || origins_[device][index].alloc_sequence != piece.alloc_sequence) return;
      const Lifetime lifetime = lifetime_at_end(origins_[device][index], piece.stack);
      store(piece.alloc_sequence, lifetime);
      if (lifetime == Lifetime::kOutlived) count(device, piece.stack, piece.node_type, piece.size, lifetime);
    });
  }
  origins_ = {};
}

void Lifetimes::store(std::uint64_t alloc_sequence, Lifetime lifetime) {
  const std::uint64_t number = alloc_sequence / kPageEvents;
  if (number != last_page_number_) {
    std::unique_ptr<Page>& page = pages_[number];
    if (!page) page = std::make_unique<Page>();
    last_page_number_ = number;
    last_page_ = page.get();
  }
  const std::uint64_t at = alloc_sequence % kPageEvents;
  std::uint8_t& pair = (*last_page_)[at / 2];
  const unsigned shift = at % 2 * 4;
  pair = static_cast<std::uint8_t>((pair & ~(0xfu << shift)) | static_cast<unsigned>(lifetime) << shift);
}

Lifetime Lifetimes::of(std::uint64_t alloc_sequence) const {
  if (const auto entry = compacted_.find(alloc_sequence); entry != compacted_.end()) return entry->second;
  const auto page = pages_.find(alloc_sequence / kPageEvents);
  if (page == pages_.end()) return Lifetime::kUnknown;
  const std::uint64_t at = alloc_sequence % kPageEvents;
  return static_cast<Lifetime>((*page->second)[at / 2] >> at % 2 * 4 & 0xf);
}

void Lifetimes::count(std::size_t device, std::uint32_t stack, std::uint16_t node_type, std::uint64_t bytes,
                      Lifetime lifetime) {
  if (lifetime == Lifetime::kCutOff || lifetime == Lifetime::kCutOffForward) return;
  if (++counted_ > kAllCounted && counted_ % kSample != 0) return;
  const auto [row, is_new] = rows_.insert(key_of(device, stack, node_type));
  if (is_new) {
    *row = static_cast<std::uint32_t>(bytes_.size());
    bytes_.emplace_back();
    keys_.push_back(key_of(device, stack, node_type));
  }
  bytes_[*row][static_cast<std::size_t>(lifetime)] += bytes;
}

Lifetime Lifetimes::most_common(std::size_t device, std::uint32_t stack, std::uint16_t node_type) const {
  const std::uint32_t* const row = rows_.find(key_of(device, stack, node_type));
  if (!row) return Lifetime::kUnknown;
  const auto largest = std::max_element(bytes_[*row].begin(), bytes_[*row].end());
  return *largest == 0 ? Lifetime::kUnknown : static_cast<Lifetime>(largest - bytes_[*row].begin());
}

}  // namespace alloctrace
