// Preloaded into a program, a file system with faults. Those of the first two kinds are for the recorder alone, on
// threads that are named "alloctrace":
//
// Opening anything under $SLOW_FOLDER takes $SLOW_MS: the interpreter, on its own threads, finds the same files at
// once. Once the file $SLOW_WRITES exists, writing into a trace takes as long.
//
// Once the file $FAILING_WRITES exists, what it says happens to writes. "eio": each fails. "short": each writes a third
// of what it should. "eintr": every second one is interrupted. Counts them in the file $FAILING_WRITES.count.
//
// With $CLOCK_SOURCE, the kernel keeps time by the clock source which this file names.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is_recorder(void) {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return strcmp(name, "alloctrace") == 0;
}

static void hang(void) {
  const long ms = atol(getenv("SLOW_MS"));
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static int how(char* word, size_t size) {
  const char* flag = getenv("FAILING_WRITES");
  FILE* file = flag ? fopen(flag, "r") : NULL;
  if (!file) return 0;
  const int read = fgets(word, (int)size, file) != NULL;
  fclose(file);
  return read;
}

static void count(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s.count", getenv("FAILING_WRITES"));
  FILE* file = fopen(path, "a");
  if (file) {
    fputc('.', file);
    fclose(file);
  }
}

ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  static int turn = 0;
  char word[16] = "";
  const char* slow = getenv("SLOW_WRITES");
  if (slow && is_recorder() && access(slow, F_OK) == 0) hang();
  if (is_recorder() && how(word, sizeof word)) {
    if (strcmp(word, "eio") == 0) {
      count();
      errno = EIO;
      return -1;
    }
    if (strcmp(word, "eintr") == 0 && turn++ % 2 == 0) {
      count();
      errno = EINTR;
      return -1;
    }
    if (strcmp(word, "short") == 0 && size > 3) {
      count();
      size /= 3;
    }
  }
  return ((ssize_t (*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite"))(file, data, size, offset);
}

static const char* opened(const char* path) {
  const char* folder = getenv("SLOW_FOLDER");
  const char* source = getenv("CLOCK_SOURCE");
  if (folder && strncmp(path, folder, strlen(folder)) == 0 && is_recorder()) hang();
  return source && strstr(path, "/current_clocksource") ? source : path;
}

#define OPEN(name)                                                                               \
  int name(const char* path, int flags, ...) {                                                   \
    va_list arguments;                                                                           \
    va_start(arguments, flags);                                                                  \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;           \
    va_end(arguments);                                                                           \
    return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, #name))(opened(path), flags, mode); \
  }
OPEN(open)
OPEN(open64)
