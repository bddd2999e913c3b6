// Preloaded into a program, a disk that fails its recorder: once the file $FAILING_WRITES exists, what it says happens
// to the recorder's own writes. "eio": each fails. "short": each writes a third of what it should. "eintr": every
// second one is interrupted. Counts them in the file $FAILING_WRITES.count.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int how(char* word, size_t size) {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  const char* flag = getenv("FAILING_WRITES");
  FILE* file = strcmp(name, "alloctrace") == 0 && flag ? fopen(flag, "r") : NULL;
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
  if (how(word, sizeof word)) {
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
