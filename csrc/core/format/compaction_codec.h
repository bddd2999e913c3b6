// Codec of the compacted part of a trace: numbers as in the rest of the trace, in sections behind their lengths. Like
// the rest, it is untrusted: every count is checked against the bytes that remain.
#pragma once

#include <cstdint>
#include <string_view>

#include "../base/varint.h"
#include "definitions.h"

namespace alloctrace {

class CompactionWriter {
 public:
  explicit CompactionWriter(const Definitions& definitions) : definitions_(&definitions) {}

  const Bytes& bytes() const { return out_; }
  const Definitions& definitions() const { return *definitions_; }

  void byte(std::uint8_t value) { out_.push_back(value); }
  void flag(bool value) { byte(value ? 1 : 0); }
  void number(std::uint64_t value) { put_varint(out_, value); }
  void signed_number(std::int64_t value) { number(zigzag(value)); }
  void difference(std::uint64_t value, std::uint64_t from) { number(zigzag_delta(value, from)); }
  void text(std::string_view value) { put_text(out_, value); }
  void raw(const Bytes& value) { out_.insert(out_.end(), value.begin(), value.end()); }
  // Write a stack id. Ids in place of a stack follow frame ids, of which readers have more: their kind is written.
  void stack(std::uint32_t id) {
    const std::uint32_t before_recording = definitions_->stack_before_recording();
    const auto libraries = static_cast<std::uint32_t>(definitions_->library_names().size());
    if (id < before_recording) return number(std::uint64_t{id} << 2);
    if (id == before_recording) return number(1);
    const std::uint32_t library = id - definitions_->stack_of_library(0);
    if (library < libraries) return number(std::uint64_t{library} << 2 | 2);
    number(std::uint64_t{library - libraries} << 2 | 3);
  }
  // Write the length of what `fill(writer)` writes, then its bytes.
  template <typename Fill>
  void section(Fill fill) {
    CompactionWriter inner(*definitions_);
    fill(inner);
    number(inner.out_.size());
    out_.insert(out_.end(), inner.out_.begin(), inner.out_.end());
  }

 private:
  const Definitions* definitions_;
  Bytes out_;
};

// Throws DecodeError if the bytes are invalid.
class CompactionReader {
 public:
  CompactionReader(ByteReader reader, const Definitions& definitions) : reader_(reader), definitions_(&definitions) {}

  bool done() const { return reader_.done(); }
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
    const std::uint64_t id = value >> 2;
    switch (value & 3) {
      case 0:
        return id < definitions_->frame_count() ? static_cast<std::uint32_t>(id) : 0;
      case 1:
        return definitions_->stack_before_recording();
      case 2:
        return id < definitions_->library_names().size()
                   ? definitions_->stack_of_library(static_cast<std::uint32_t>(id))
                   : 0;
      default:
        return id < definitions_->node_type_count() ? definitions_->stack_of_node(static_cast<std::uint16_t>(id)) : 0;
    }
  }
  CompactionReader section() {
    const std::string_view bytes = reader_.text();
    return {ByteReader(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()), *definitions_};
  }

 private:
  ByteReader reader_;
  const Definitions* definitions_;
};

}  // namespace alloctrace
