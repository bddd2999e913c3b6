// Variable-length integers of the trace file (LEB128): seven bits a byte, least significant first, the high bit set on
// all bytes but the last. Signed values are zigzag-encoded: small negative values stay short.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace alloctrace {

using Bytes = std::vector<std::uint8_t>;

// Bytes that the writer cannot have produced, although their checksum is valid or absent.
class DecodeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr std::uint64_t zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
constexpr std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}
// Zigzag-encode a difference modulo 2^64: exact for any two values.
constexpr std::uint64_t zigzag_delta(std::uint64_t value, std::uint64_t previous) {
  return zigzag(static_cast<std::int64_t>(value - previous));
}
constexpr std::uint64_t add_zigzag_delta(std::uint64_t previous, std::uint64_t encoded) {
  return previous + static_cast<std::uint64_t>(unzigzag(encoded));
}

inline void put_varint(Bytes& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<std::uint8_t>(value) | 0x80);
    value >>= 7;
  }
  out.push_back(static_cast<std::uint8_t>(value));
}

inline void put_text(Bytes& out, std::string_view text) {
  put_varint(out, text.size());
  out.insert(out.end(), text.begin(), text.end());
}

// Append positions [tail, head) of a ring of `capacity` bytes to `out`.
inline void copy_bytes_from_ring(const std::uint8_t* ring, std::size_t capacity, std::uint64_t tail, std::uint64_t head,
                                 Bytes& out) {
  const std::size_t size = head - tail;
  const std::size_t start = tail % capacity;
  const std::size_t until_end = std::min(size, capacity - start);
  out.insert(out.end(), ring + start, ring + start + until_end);
  out.insert(out.end(), ring, ring + (size - until_end));
}

// Forward reader over bytes that it does not own. Every read is bounds-checked: the input may be corrupt.
class ByteReader {
 public:
  ByteReader(const std::uint8_t* begin, std::size_t size) : at_(begin), end_(begin + size) {}
  explicit ByteReader(const Bytes& bytes) : ByteReader(bytes.data(), bytes.size()) {}

  bool done() const { return at_ == end_; }
  std::size_t remaining() const { return static_cast<std::size_t>(end_ - at_); }
  const std::uint8_t* position() const { return at_; }

  std::uint8_t byte() {
    if (at_ == end_) throw DecodeError("bytes end in the middle of a value");
    return *at_++;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      value |= static_cast<std::uint64_t>(next & 0x7f) << shift;
      if (next < 0x80) return value;
    }
    throw DecodeError("a number is longer than 64 bits");
  }
  std::uint32_t varint32() {
    const std::uint64_t value = varint();
    if (value > UINT32_MAX) throw DecodeError("a number does not fit its field");
    return static_cast<std::uint32_t>(value);
  }
  std::string_view text() { return bytes(varint()); }
  std::string_view bytes(std::uint64_t size) {
    if (size > remaining()) throw DecodeError("bytes end in the middle of a text");
    const std::string_view view(reinterpret_cast<const char*>(at_), static_cast<std::size_t>(size));
    at_ += size;
    return view;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace alloctrace
