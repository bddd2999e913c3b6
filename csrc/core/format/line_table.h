// Decoder of CPython's line tables, which map the instructions of a code object to source lines.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace alloctrace {

enum class LineTableKind : std::uint8_t {
  kNone = 0,       // no table: every instruction is on first_line
  kPython310 = 1,  // PEP 626 `co_linetable` of CPython 3.10: pairs (byte-offset delta, signed line delta)
  kPython311 = 2,  // location table of CPython 3.11 and later (Objects/locations.md in its source)
};

// Return the line of each instruction, 0 if the table has none (artificial instructions). instructions: byte offsets,
// ascending. Decodes the table once. Where it is corrupt the line is first_line: a wrong line must not cost the stack.
std::vector<std::int32_t> decode_lines(LineTableKind kind, std::string_view table, std::int32_t first_line,
                                       const std::vector<std::uint32_t>& instructions);

}  // namespace alloctrace
