#include "line_table.h"

#include "../base/varint.h"

namespace alloctrace {
namespace {

// Gives each entry of the table to `take(end, line)`, which says whether it wants more: the line, or 0, of the
// instructions before the offset `end` that are in no entry before it.

// Pairs (byte-offset delta, signed line delta); -128 marks a range that has no line. Source: CPython 3.10,
// Objects/lnotab_notes.txt.
template <typename Take>
void read_310(std::string_view table, std::int32_t first_line, Take take) {
  std::int64_t line = first_line;
  std::uint32_t end = 0;
  for (std::size_t at = 0; at + 1 < table.size(); at += 2) {
    const auto line_delta = static_cast<std::int8_t>(table[at + 1]);
    end += static_cast<std::uint8_t>(table[at]);
    if (line_delta != -128) line += line_delta;
    if (!take(end, line_delta == -128 ? 0 : static_cast<std::int32_t>(line))) return;
  }
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
template <typename Take>
void read_311(std::string_view bytes, std::int32_t first_line, Take take) {
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
    if (!take(end, has_line ? static_cast<std::int32_t>(line) : 0)) return;
  }
}

}  // namespace

std::vector<std::int32_t> decode_lines(LineTableKind kind, std::string_view table, std::int32_t first_line,
                                       const std::vector<std::uint32_t>& instructions) {
  std::vector<std::int32_t> lines(instructions.size(), first_line);
  std::size_t next = 0;
  const auto take = [&](std::uint32_t end, std::int32_t line) {
    for (; next < instructions.size() && instructions[next] < end; ++next) lines[next] = line;
    return next < instructions.size();
  };
  try {
    if (kind == LineTableKind::kPython310) read_310(table, first_line, take);
    if (kind == LineTableKind::kPython311) read_311(table, first_line, take);
  } catch (const DecodeError&) {
    // The rest keeps the first line.
  }
  return lines;
}

}  // namespace alloctrace
