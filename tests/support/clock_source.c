// Preloaded into a program, a kernel that keeps time by the clock source which the file $CLOCK_SOURCE names.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char* replaced(const char* path) {
  const char* other = getenv("CLOCK_SOURCE");
  return other && strstr(path, "/current_clocksource") ? other : path;
}

#define OPEN(name)                                                                                 \
  int name(const char* path, int flags, ...) {                                                     \
    va_list arguments;                                                                             \
    va_start(arguments, flags);                                                                    \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;             \
    va_end(arguments);                                                                             \
    return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, #name))(replaced(path), flags, mode); \
  }
OPEN(open)
OPEN(open64)
