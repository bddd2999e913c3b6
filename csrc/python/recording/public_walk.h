// The Python stack through CPython's public API only, for interpreters whose frames this module does not know.
#pragma once

#include <cstdint>

#include "code_registry.h"

namespace alloctrace::python {

// Like current_stack, but 0 on a thread that does not hold the GIL. It makes frame objects, which is slow, yet runs no
// Python code and leaves no trace in the interpreter: garbage collection waits, and a pending exception stays.
[[gnu::noinline]] std::uint32_t current_stack_by_public_api(CodeRegistry& registry) noexcept;

}  // namespace alloctrace::python
