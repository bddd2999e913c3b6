// Consistency checks of check builds (ALLOCTRACE_CHECKS=1, see building.py). Other builds contain no part of them.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace alloctrace {

#ifdef ALLOCTRACE_CHECKS
inline constexpr bool kChecks = true;
#else
inline constexpr bool kChecks = false;
#endif

// Print the place of a check and a sentence in printf's format, then abort.
[[noreturn, gnu::cold, gnu::noinline, gnu::format(printf, 3, 4)]] inline void fail_check(const char* file, int line,
                                                                                         const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  std::fprintf(stderr, "%s:%d: check failed: ", file, line);
  std::vfprintf(stderr, format, values);
  std::fputc('\n', stderr);
  va_end(values);
  std::abort();
}

}  // namespace alloctrace

// Abort with a sentence in printf's format, if the condition is false. The condition is evaluated in check builds only.
#define ALLOCTRACE_CHECK(condition, ...)                                           \
  do {                                                                             \
    if constexpr (::alloctrace::kChecks) {                                         \
      if (!(condition)) ::alloctrace::fail_check(__FILE__, __LINE__, __VA_ARGS__); \
    }                                                                              \
  } while (false)
