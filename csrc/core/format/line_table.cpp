#include "line_table.h"

#include "../base/varint.h"

namespace alloctrace {
namespace {

// Pairs (byte-offset delta, signed line delta); -128 marks a range that has no line. Source: CPython 3.10,
// Objects/lnotab_notes.txt.
std::int32_t decode_310(std::string_view table, std::int32_t first_line, std::uint32_t instruction) {
  std::int64_t line = first_line;
  std::uint32_t end = 0;
  for (std::size_t at = 0; at + 1 < table.size(); at += 2) {
    const auto line_delta = static_cast<std::int8_t>(table[at + 1]);
    end += static_cast<std::uint8_t>(table[at]);
    if (line_delta != -128) line += line_delta;
    if (instruction < end) return line_delta == -128 ? 0 : static_cast<std::int32_t>(line);
  }
  return first_line;
}

// The numbers inside a location table: six bits a byte, bit 6 says that more follow.
std::uint32_t location_varint(ByteReader& table) {
  std::uint32_t value = 0;
  for (int shift = 0; shift < 32; shift += 6) {
    const std::uint8_t next = table.byte();
    value |= static_cast<std::uint32_t>(next & 0x3f) << shift;
    if (!(next & 0x40)) break;
  }
  return value;
}
std::int64_t location_signed_varint(ByteReader& table) {
  const std::uint32_t folded = location_varint(table);
  const std::int64_t magnitude = folded >> 1;
  return folded & 1 ? -magnitude : magnitude;
}

// Entries: first byte 1 cccc lll, code and length - 1 in code units; then what the code says. Source: CPython 3.11,
// Objects/locations.md.
std::int32_t decode_311(std::string_view bytes, std::int32_t first_line, std::uint32_t instruction) {
  ByteReader table(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  std::int64_t line = first_line;  // wide: a damaged table may add up to anything
  std::uint32_t end = 0;
  while (!table.done()) {
    const std::uint8_t head = table.byte();
    const int code = head >> 3 & 15;
    end += ((head & 7) + 1u) * 2;
    bool has_line = true;
    if (code <= 9) {  // short form: same line, columns in one byte
      table.byte();
    } else if (code <= 12) {  // one line: line delta is code - 10, two column bytes
      line += code - 10;
      table.take(2);
    } else if (code == 13) {  // no columns
      line += location_signed_varint(table);
    } else if (code == 14) {  // long form: line, end line, two columns
      line += location_signed_varint(table);
      for (int field = 0; field < 3; ++field) location_varint(table);
    } else {
      has_line = false;
    }
    if (instruction < end) return has_line ? static_cast<std::int32_t>(line) : 0;
  }
  return first_line;
}

}  // namespace

std::int32_t decode_line(LineTableKind kind, std::string_view table, std::int32_t first_line,
                         std::uint32_t instruction) {
  try {
    switch (kind) {
      case LineTableKind::kPython310:
        return decode_310(table, first_line, instruction);
      case LineTableKind::kPython311:
        return decode_311(table, first_line, instruction);
      default:
        return first_line;
    }
  } catch (const DecodeError&) {
    return first_line;
  }
}

}  // namespace alloctrace
