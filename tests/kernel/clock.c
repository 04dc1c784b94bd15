/* The calendar clock, moved by the seconds that stand in the file $TT_CLOCK; preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *at) {
  long result = syscall(SYS_clock_gettime, id, at);
  const char *path = getenv("TT_CLOCK");
  if (id != CLOCK_REALTIME || result || !path) return (int)result;
  char text[32] = {0};
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  if (read(fd, text, sizeof text - 1) > 0) at->tv_sec += strtol(text, 0, 10);
  close(fd);
  return 0;
}
