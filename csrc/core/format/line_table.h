// From an instruction to the line of source it came from, by the tables that CPython's compiler leaves in code objects.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace alloctrace {

// How a code object's line table maps an instruction to a line (decode_lines reads all of them).
enum class LineTableKind : std::uint8_t {
  kNone = 0,       // no table: every instruction is on first_line
  kPython310 = 1,  // PEP 626 `co_linetable` of CPython 3.10: pairs (byte-offset delta, signed line delta)
  kPython311 = 2,  // location table of CPython 3.11 and later (Objects/locations.md in its source)
};

// The line of each of the instructions, which are byte offsets in ascending order; 0 where the table gives it none
// (artificial instructions). The table is read once. Where it is damaged they get first_line, never an error: one wrong
// line must not cost the stack.
std::vector<std::int32_t> decode_lines(LineTableKind kind, std::string_view table, std::int32_t first_line,
                                       const std::vector<std::uint32_t>& instructions);

}  // namespace alloctrace
