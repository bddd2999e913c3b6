// How a fold is written: numbers as in the rest of the trace, in sections that know their length. It is read by whoever
// opens the trace, and as little trusted as anything there: each number is held to what it counts.
#pragma once

#include <cstdint>
#include <string_view>

#include "../base/varint.h"
#include "../format/definitions.h"

namespace alloctrace {

class FoldWriter {
 public:
  explicit FoldWriter(const Definitions& definitions) : definitions_(&definitions) {}

  const Bytes& bytes() const { return out_; }
  const Definitions& definitions() const { return *definitions_; }

  void byte(std::uint8_t value) { out_.push_back(value); }
  void flag(bool value) { byte(value ? 1 : 0); }
  void number(std::uint64_t value) { put_varint(out_, value); }
  void signed_number(std::int64_t value) { number(zigzag(value)); }
  void difference(std::uint64_t value, std::uint64_t from) { number(zigzag_delta(value, from)); }
  void text(std::string_view value) { put_text(out_, value); }
  void raw(const Bytes& value) { out_.insert(out_.end(), value.begin(), value.end()); }
  // What stands for no line of Python has ids that follow those of the frames, of which there will be more when this is
  // read: these are written by what they stand for.
  void stack(std::uint32_t id) {
    const std::uint32_t before = definitions_->stack_before_recording();
    const auto libraries = static_cast<std::uint32_t>(definitions_->library_names().size());
    if (id < before) return number(std::uint64_t{id} << 2);
    if (id == before) return number(1);
    const std::uint32_t of_library = id - definitions_->stack_of_library(0);
    if (of_library < libraries) return number(std::uint64_t{of_library} << 2 | 2);
    number(std::uint64_t{of_library - libraries} << 2 | 3);
  }
  // What `fill(writer)` writes, behind its length.
  template <typename Fill>
  void section(Fill fill) {
    FoldWriter inner(*definitions_);
    fill(inner);
    number(inner.out_.size());
    out_.insert(out_.end(), inner.out_.begin(), inner.out_.end());
  }

 private:
  const Definitions* definitions_;
  Bytes out_;
};

// Throws DecodeError where the bytes make no sense.
class FoldReader {
 public:
  FoldReader(ByteReader reader, const Definitions& definitions) : reader_(reader), definitions_(&definitions) {}

  bool done() const { return reader_.done(); }
  const Definitions& definitions() const { return *definitions_; }

  std::uint8_t byte() { return reader_.byte(); }
  bool flag() { return byte() != 0; }
  std::uint64_t number() { return reader_.varint(); }
  std::uint32_t number32() { return reader_.varint32(); }
  std::int64_t signed_number() { return unzigzag(number()); }
  std::uint64_t difference(std::uint64_t from) { return add_zigzag_delta(from, number()); }
  std::string_view text() { return reader_.text(); }
  // Of something that follows, each of which has `least` bytes or more.
  std::size_t count(std::size_t least = 1) {
    const std::uint64_t value = number();
    if (value > reader_.remaining() / least) throw DecodeError("a compacted part counts more than it has");
    return static_cast<std::size_t>(value);
  }
  // A number below `limit`.
  std::uint64_t below(std::uint64_t limit) {
    const std::uint64_t value = number();
    if (value >= limit) throw DecodeError("a compacted part names something that is not there");
    return value;
  }
  // 0 for one whose definition damage has taken.
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
  FoldReader section() {
    const std::string_view bytes = reader_.text();
    return {ByteReader(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()), *definitions_};
  }

 private:
  ByteReader reader_;
  const Definitions* definitions_;
};

}  // namespace alloctrace
