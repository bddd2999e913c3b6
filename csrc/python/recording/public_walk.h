// Walk of the Python stack through CPython's public API, for interpreters with an unknown frame layout.
#pragma once

#include <cstdint>

#include "code_registry.h"

namespace alloctrace::python {

// Return the same as current_stack, but 0 on a thread without the GIL. Slow, since it creates frame objects. Runs no
// Python code: garbage collection is disabled meanwhile, and a pending exception is preserved.
[[gnu::noinline]] std::uint32_t current_stack_by_public_api(CodeRegistry& registry) noexcept;

}  // namespace alloctrace::python
