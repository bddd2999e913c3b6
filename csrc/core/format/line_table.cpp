#include "line_table.h"

#include "../base/varint.h"

namespace alloctrace {
namespace {

// Each reader passes its entries to `consume(end, line)`, which returns whether to continue. An entry covers the
// instructions from the previous entry to the offset `end`; line 0: none.

// Read pairs (byte-offset delta, signed line delta; -128: no line). Source: CPython 3.10, Objects/lnotab_notes.txt.
template <typename Consume>
void read_310(std::string_view table, std::int32_t first_line, Consume consume) {
  std::int64_t line = first_line;
  std::uint32_t end = 0;
  for (std::size_t at = 0; at + 1 < table.size(); at += 2) {
    const auto line_delta = static_cast<std::int8_t>(table[at + 1]);
    end += static_cast<std::uint8_t>(table[at]);
    if (line_delta != -128) line += line_delta;
    if (!consume(end, line_delta == -128 ? 0 : static_cast<std::int32_t>(line))) return;
  }
}

// Read a number of a location table: six bits a byte, bit 6 set on all bytes but the last.
std::uint32_t read_location_varint(ByteReader& table) {
  std::uint32_t value = 0;
  for (int shift = 0; shift < 32; shift += 6) {
    const std::uint8_t next = table.byte();
    value |= static_cast<std::uint32_t>(next & 0x3f) << shift;
    if (!(next & 0x40)) break;
  }
  return value;
}
std::int64_t read_signed_location_varint(ByteReader& table) {
  const std::uint32_t encoded = read_location_varint(table);
  const std::int64_t magnitude = encoded >> 1;
  return encoded & 1 ? -magnitude : magnitude;
}

// Read entries: byte 1 cccc lll (code, code units - 1), then fields by code. CPython 3.11, Objects/locations.md.
template <typename Consume>
void read_311(std::string_view bytes, std::int32_t first_line, Consume consume) {
  ByteReader table(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  std::int64_t line = first_line;  // 64 bits: the deltas of a corrupt table may overflow 32
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
      table.bytes(2);
    } else if (code == 13) {  // no columns
      line += read_signed_location_varint(table);
    } else if (code == 14) {  // long form: line, end line, two columns
      line += read_signed_location_varint(table);
      for (int field = 0; field < 3; ++field) read_location_varint(table);
    } else {
      has_line = false;
    }
    if (!consume(end, has_line ? static_cast<std::int32_t>(line) : 0)) return;
  }
}

}  // namespace

std::vector<std::int32_t> decode_lines(LineTableKind kind, std::string_view table, std::int32_t first_line,
                                       const std::vector<std::uint32_t>& instructions) {
  std::vector<std::int32_t> lines(instructions.size(), first_line);
  std::size_t next = 0;
  const auto consume = [&](std::uint32_t end, std::int32_t line) {
    for (; next < instructions.size() && instructions[next] < end; ++next) lines[next] = line;
    return next < instructions.size();
  };
  try {
    if (kind == LineTableKind::kPython310) read_310(table, first_line, consume);
    if (kind == LineTableKind::kPython311) read_311(table, first_line, consume);
  } catch (const DecodeError&) {
    // The remaining instructions keep the first line.
  }
  return lines;
}

}  // namespace alloctrace
