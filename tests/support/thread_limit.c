// Preloaded: a system that starts no more threads, as at the limit of RLIMIT_NPROC or of a container.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
static int left = 1 << 30;
void allow_threads(int count) { left = count; }
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  if (left-- <= 0) return EAGAIN;
  int (*create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
  return create(thread, attributes, body, argument);
}
