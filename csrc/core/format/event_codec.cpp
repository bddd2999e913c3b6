#include "event_codec.h"

#include <array>
#include <cinttypes>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "../base/check.h"
#include "../base/hash.h"

namespace alloctrace {
namespace {

enum Column { kTag, kKind, kTime, kAddress, kSize, kStack, kContext, kColumnCount };
constexpr std::uint8_t kStackEntry = 0x10, kSizeEntry = 0x20, kAddressEntry = 0x40, kContextEntry = 0x80;
constexpr std::uint8_t kKindMask = 0x0f, kKindInColumn = 0x0f;
constexpr std::uint8_t kThreadChanged = 1, kLocationChanged = 2, kSequenceChanged = 4, kNodeChanged = 8;

constexpr std::size_t kPredictionSlots = 4096;

std::size_t hash_slot(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::size_t>(((a * kGoldenRatio) ^ (b * 0xC2B2AE3D27D4EB4Fu)) * kGoldenRatio >> 52);
}

struct ThreadState {
  std::uint32_t location = 0;
  std::uint64_t sequence = 0;
  std::uint64_t node_sequence = 0;
  std::uint32_t node_thread = 0;
  std::uint16_t node_type = 0;
};

}  // namespace

// Prediction state of writer and reader before each event. Shared code updates it for both, so they cannot diverge.
struct CodecState {
  std::array<std::uint32_t, kPredictionSlots> next_address{};
  std::array<std::uint32_t, kPredictionSlots> next_stack{};
  std::array<std::uint64_t, kPredictionSlots> next_size{};
  std::uint64_t time = 0;
  std::uint64_t last_new_address = 0;
  std::uint32_t last_index = 0;
  std::uint64_t last_alloc_size = 0;
  std::uint32_t last_stack = 0;
  std::uint32_t last_thread = 0;
  std::unordered_map<std::uint32_t, ThreadState, SeededHash> threads;
  ThreadState* thread = &threads[0];  // of last_thread; node-based map: the pointer stays valid

  ThreadState& switch_to(std::uint32_t id) {
    last_thread = id;
    thread = &threads[id];
    return *thread;
  }
  std::uint32_t& address_prediction(std::uint8_t kind) { return next_address[hash_slot(last_index, kind)]; }
  std::uint32_t& stack_prediction(std::uint8_t kind) { return next_stack[hash_slot(last_stack, kind)]; }
  std::uint64_t& size_prediction(std::uint32_t stack, std::uint8_t kind) {
    return next_size[hash_slot(last_alloc_size << 8 | kind, stack)];
  }
};

#ifdef ALLOCTRACE_CHECKS
namespace {

// Abort unless the payload decodes to the events.
void check_payload(const Bytes& payload, const std::vector<Event>& events, std::uint64_t begin_time) {
  std::vector<Event> decoded;
  try {
    decode_events(payload.data(), payload.size(), events.size(), begin_time, decoded);
  } catch (const DecodeError& error) {
    ALLOCTRACE_CHECK(false, "the block just encoded is invalid: %s", error.what());
  }
  for (std::size_t i = 0; i < events.size(); ++i) {
    Event event = events[i];
    event.commit = 0;  // these two are not encoded
    event.reserved = 0;
    ALLOCTRACE_CHECK(std::memcmp(&event, &decoded[i], sizeof event) == 0,
                     "event %zu of %zu (kind %d, address 0x%" PRIx64 ") is decoded with kind %d, address 0x%" PRIx64, i,
                     events.size(), static_cast<int>(event.kind), event.address, static_cast<int>(decoded[i].kind),
                     decoded[i].address);
  }
}

}  // namespace
#endif

EventEncoder::EventEncoder() = default;

const Bytes& EventEncoder::encode(std::span<const Event> first, std::span<const Event> second,
                                  std::uint64_t begin_time) {
#ifdef ALLOCTRACE_CHECKS
  // A copy: if another process truncates the spool, the events change before they are compared.
  std::vector<Event> events(first.begin(), first.end());
  events.insert(events.end(), second.begin(), second.end());
  first = std::span<const Event>(events).first(first.size());
  second = std::span<const Event>(events).subspan(first.size());
#endif
  for (Bytes& column : columns_) column.clear();
  address_indices_.clear();
  const auto state = std::make_unique<CodecState>();
  state->time = begin_time;
  encode_run(first, *state);
  encode_run(second, *state);
  payload_.clear();
  for (const Bytes& column : columns_) {
    put_varint(payload_, column.size());
    payload_.insert(payload_.end(), column.begin(), column.end());
  }
#ifdef ALLOCTRACE_CHECKS
  check_payload(payload_, events, begin_time);
#endif
  return payload_;
}

void EventEncoder::encode_run(std::span<const Event> events, CodecState& state) {
  for (const Event& event : events) {
    const auto kind = static_cast<std::uint8_t>(event.kind);
    std::uint8_t tag = kind;
    if (kind >= kKindInColumn) {
      tag = kKindInColumn;
      columns_[kKind].push_back(kind);
    }

    put_varint(columns_[kTime], zigzag_delta(event.time, state.time));
    state.time = event.time;

    const auto [address_index, is_new] = address_indices_.insert(event.address);
    if (is_new) *address_index = static_cast<std::uint32_t>(address_indices_.size() - 1);
    const std::uint32_t index = *address_index;
    std::uint32_t& expected_index = state.address_prediction(kind);
    if (is_new || index != expected_index) {
      tag |= kAddressEntry;
      if (is_new) {
        put_varint(columns_[kAddress], 0);
        put_varint(columns_[kAddress], zigzag_delta(event.address, state.last_new_address));
        state.last_new_address = event.address;
      } else {
        put_varint(columns_[kAddress], 1 + zigzag(std::int64_t{index} - std::int64_t{state.last_index}));
      }
    }
    expected_index = index;
    state.last_index = index;

    std::uint32_t& expected_stack = state.stack_prediction(kind);
    if (event.stack != expected_stack) {
      tag |= kStackEntry;
      put_varint(columns_[kStack], zigzag(std::int64_t{event.stack} - std::int64_t{state.last_stack}));
    }
    expected_stack = event.stack;
    state.last_stack = event.stack;

    std::uint64_t& expected_size = state.size_prediction(event.stack, kind);
    if (event.size != expected_size) {
      tag |= kSizeEntry;
      put_varint(columns_[kSize], event.size);
    }
    expected_size = event.size;
    if (event.kind == EventKind::kAlloc) state.last_alloc_size = event.size;

    std::uint8_t changed = event.thread == state.last_thread ? 0 : kThreadChanged;
    ThreadState& thread = changed ? state.switch_to(event.thread) : *state.thread;
    if (event.location != thread.location) changed |= kLocationChanged;
    if (event.sequence != thread.sequence) changed |= kSequenceChanged;
    if (event.node_sequence != thread.node_sequence || event.node_thread != thread.node_thread ||
        event.node_type != thread.node_type) {
      changed |= kNodeChanged;
    }
    if (changed) {
      tag |= kContextEntry;
      Bytes& column = columns_[kContext];
      column.push_back(changed);
      if (changed & kThreadChanged) put_varint(column, event.thread);
      if (changed & kLocationChanged) put_varint(column, event.location);
      if (changed & kSequenceChanged) put_varint(column, zigzag_delta(event.sequence, thread.sequence));
      if (changed & kNodeChanged) {
        put_varint(column, zigzag_delta(event.node_sequence, thread.node_sequence));
        put_varint(column, event.node_thread);
        put_varint(column, event.node_type);
      }
      thread = {event.location, event.sequence, event.node_sequence, event.node_thread, event.node_type};
    }
    columns_[kTag].push_back(tag);
  }
}

void decode_events(const std::uint8_t* payload, std::size_t size, std::uint64_t count, std::uint64_t begin_time,
                   std::vector<Event>& out) {
  ByteReader payload_reader(payload, size);
  std::vector<ByteReader> columns;
  columns.reserve(kColumnCount);
  for (int column = 0; column < kColumnCount; ++column) {
    const std::string_view bytes = payload_reader.text();
    columns.emplace_back(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  // The tag column has one byte an event: a count that disagrees must not make the decoder reserve memory.
  if (columns[kTag].remaining() != count) throw DecodeError("a block's event count disagrees with its events");

  const auto state_owner = std::make_unique<CodecState>();
  CodecState& state = *state_owner;
  state.time = begin_time;
  std::vector<std::uint64_t> addresses;
  out.clear();
  out.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    Event event{};
    const std::uint8_t tag = columns[kTag].byte();
    const std::uint8_t kind = (tag & kKindMask) == kKindInColumn ? columns[kKind].byte() : tag & kKindMask;
    event.kind = static_cast<EventKind>(kind);

    event.time = state.time = add_zigzag_delta(state.time, columns[kTime].varint());

    std::uint32_t& expected_index = state.address_prediction(kind);
    std::uint32_t index = expected_index;
    if (tag & kAddressEntry) {
      const std::uint64_t entry = columns[kAddress].varint();
      if (entry == 0) {
        index = static_cast<std::uint32_t>(addresses.size());
        state.last_new_address = add_zigzag_delta(state.last_new_address, columns[kAddress].varint());
        addresses.push_back(state.last_new_address);
      } else {
        index = static_cast<std::uint32_t>(add_zigzag_delta(state.last_index, entry - 1));
      }
    }
    if (index >= addresses.size()) throw DecodeError("an event names an address that its block does not have");
    event.address = addresses[index];
    expected_index = index;
    state.last_index = index;

    std::uint32_t& expected_stack = state.stack_prediction(kind);
    event.stack = expected_stack;
    if (tag & kStackEntry) {
      event.stack = static_cast<std::uint32_t>(add_zigzag_delta(state.last_stack, columns[kStack].varint()));
    }
    expected_stack = event.stack;
    state.last_stack = event.stack;

    std::uint64_t& expected_size = state.size_prediction(event.stack, kind);
    event.size = tag & kSizeEntry ? columns[kSize].varint() : expected_size;
    expected_size = event.size;
    if (event.kind == EventKind::kAlloc) state.last_alloc_size = event.size;

    if (tag & kContextEntry) {
      ByteReader& column = columns[kContext];
      const std::uint8_t changed = column.byte();
      ThreadState& thread = changed & kThreadChanged ? state.switch_to(column.varint32()) : *state.thread;
      if (changed & kLocationChanged) thread.location = column.varint32();
      if (changed & kSequenceChanged) thread.sequence = add_zigzag_delta(thread.sequence, column.varint());
      if (changed & kNodeChanged) {
        thread.node_sequence = add_zigzag_delta(thread.node_sequence, column.varint());
        thread.node_thread = column.varint32();
        thread.node_type = static_cast<std::uint16_t>(column.varint32());
      }
    }
    event.thread = state.last_thread;
    event.location = state.thread->location;
    event.sequence = state.thread->sequence;
    event.node_sequence = state.thread->node_sequence;
    event.node_thread = state.thread->node_thread;
    event.node_type = state.thread->node_type;
    out.push_back(event);
  }
}

}  // namespace alloctrace
