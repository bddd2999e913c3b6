// From an instruction to the line of source it came from, by the tables that CPython's compiler leaves in code objects.
#pragma once

#include <cstdint>
#include <string_view>

#include "stack_table.h"

namespace alloctrace {

// Line of the instruction at byte offset `instruction`; 0 where the table gives it no line (artificial instructions).
// A damaged table gives first_line, never an error: one wrong line must not cost the stack.
std::int32_t decode_line(LineTableKind kind, std::string_view table, std::int32_t first_line,
                         std::uint32_t instruction);

}  // namespace alloctrace
