// Codec of the compacted part of a trace: numbers as in the rest of the trace, in sections behind their lengths. Like
// the rest, it is untrusted: every count is checked against the bytes that remain.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "../base/varint.h"
#include "definitions.h"

namespace alloctrace {

class CompactionWriter {
 public:
  explicit CompactionWriter(const Definitions& definitions) : definitions_(&definitions) {}

  const Bytes& bytes() {
    out_.resize(size_);
    return out_;
  }
  const Definitions& definitions() const { return *definitions_; }

  void byte(std::uint8_t value) {
    if (size_ == out_.size()) grow(1);
    out_[size_++] = value;
  }
  void flag(bool value) { byte(value ? 1 : 0); }
  void number(std::uint64_t value) {
    if (out_.size() - size_ < kMaxVarintBytes) grow(kMaxVarintBytes);
    std::uint8_t* at = out_.data() + size_;
    for (; value >= 0x80; value >>= 7) *at++ = static_cast<std::uint8_t>(value) | 0x80;
    *at++ = static_cast<std::uint8_t>(value);
    size_ = static_cast<std::size_t>(at - out_.data());
  }
  void signed_number(std::int64_t value) { number(zigzag(value)); }
  void difference(std::uint64_t value, std::uint64_t from) { number(zigzag_delta(value, from)); }
  void text(std::string_view value) {
    number(value.size());
    raw(value.data(), value.size());
  }
  void raw(const void* bytes, std::size_t size) {
    if (out_.size() - size_ < size) grow(size);
    if (size != 0) std::memcpy(out_.data() + size_, bytes, size);
    size_ += size;
  }
  // Write a stack id as its origin: readers have more frames, and so other ids for synthetic stacks.
  void stack(std::uint32_t id) {
    const StackOrigin origin = definitions_->origin_of(id);
    number(std::uint64_t{origin.index} << 2 | static_cast<std::uint64_t>(origin.kind));
  }
  // Write the length of what `fill(writer)` writes, then its bytes.
  template <typename Fill>
  void section(Fill fill) {
    CompactionWriter inner(*definitions_);
    fill(inner);
    number(inner.size_);
    raw(inner.out_.data(), inner.size_);
  }

 private:
  static constexpr std::size_t kMaxVarintBytes = 10;

  void grow(std::size_t bytes) { out_.resize(std::max(2 * out_.size(), out_.size() + bytes)); }

  const Definitions* definitions_;
  Bytes out_;  // longer than what is written: a check of the size for each byte would take longer than all other work
  std::size_t size_ = 0;
};

// Throws DecodeError if the bytes are invalid.
class CompactionReader {
 public:
  CompactionReader(ByteReader reader, const Definitions& definitions) : reader_(reader), definitions_(&definitions) {}

  bool done() const { return reader_.done(); }
  std::size_t remaining() const { return reader_.remaining(); }
  const Definitions& definitions() const { return *definitions_; }

  std::uint8_t byte() { return reader_.byte(); }
  bool flag() { return byte() != 0; }
  std::uint64_t number() { return reader_.varint(); }
  std::uint32_t number32() { return reader_.varint32(); }
  std::int64_t signed_number() { return unzigzag(number()); }
  std::uint64_t difference(std::uint64_t from) { return add_zigzag_delta(from, number()); }
  std::string_view text() { return reader_.text(); }
  // Read the number of items that follow, each of at least `min_bytes`.
  std::size_t count(std::size_t min_bytes = 1) {
    const std::uint64_t value = number();
    if (value > reader_.remaining() / min_bytes) throw DecodeError("a compacted part with a count above its size");
    return static_cast<std::size_t>(value);
  }
  std::uint64_t below(std::uint64_t limit) {
    const std::uint64_t value = number();
    if (value >= limit) throw DecodeError("a compacted part with a number out of range");
    return value;
  }
  // Read the id of a stack; 0 if its definition is missing.
  std::uint32_t stack() {
    const std::uint64_t value = number();
    const std::uint64_t index = std::min<std::uint64_t>(value >> 2, UINT32_MAX);  // UINT32_MAX is never defined
    return definitions_->stack_of({static_cast<StackOrigin::Kind>(value & 3), static_cast<std::uint32_t>(index)});
  }
  CompactionReader section() {
    const std::string_view bytes = reader_.text();
    return {ByteReader(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()), *definitions_};
  }

 private:
  ByteReader reader_;
  const Definitions* definitions_;
};

inline void put_event(CompactionWriter& out, const Event& event) {
  out.byte(static_cast<std::uint8_t>(event.kind));
  for (const std::uint64_t field : {event.time, event.address, event.size, event.sequence, event.node_sequence}) {
    out.number(field);
  }
  for (const std::uint32_t field : {event.stack, event.thread, event.location, event.node_thread}) out.number(field);
  out.number(event.node_type);
}

// Read an event. Ids without a definition become 0.
inline Event read_event(CompactionReader& in) {
  Event event{};
  event.kind = static_cast<EventKind>(in.byte());
  for (std::uint64_t* field : {&event.time, &event.address, &event.size, &event.sequence, &event.node_sequence}) {
    *field = in.number();
  }
  for (std::uint32_t* field : {&event.stack, &event.thread, &event.location, &event.node_thread}) {
    *field = in.number32();
  }
  const std::uint32_t node_type = in.number32();
  event.node_type = static_cast<std::uint16_t>(node_type <= UINT16_MAX ? node_type : 0);
  in.definitions().clear_undefined_ids(event);
  return event;
}

}  // namespace alloctrace
