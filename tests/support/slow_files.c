// Preloaded into a program, a file system that hangs for the recorder alone: opening anything under $SLOW_FOLDER takes
// $SLOW_MS on a thread that is named "alloctrace". The interpreter, on its own threads, finds the same files at once.
// Once the file $SLOW_WRITES exists, writing into a trace takes as long.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void hang(void) {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  if (strcmp(name, "alloctrace") != 0) return;
  const long ms = atol(getenv("SLOW_MS"));
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static void wait_for(const char* path) {
  const char* folder = getenv("SLOW_FOLDER");
  if (folder && strncmp(path, folder, strlen(folder)) == 0) hang();
}

ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  const char* flag = getenv("SLOW_WRITES");
  if (flag && access(flag, F_OK) == 0) hang();
  return ((ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite"))(file, data, size, offset);
}

#define OPEN(name)                                                                       \
  int name(const char* path, int flags, ...) {                                           \
    va_list arguments;                                                                   \
    va_start(arguments, flags);                                                          \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;   \
    va_end(arguments);                                                                   \
    wait_for(path);                                                                      \
    return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
