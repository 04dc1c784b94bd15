/* sys.h: raw system calls, memory and text helpers that are safe while every other thread is
 * stopped: no malloc, no errno, no lock, no thread-local storage, no libc function. */
#ifndef TT_SYS_H
#define TT_SYS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include "arch.h"

/* Numbers that older headers lack; the same on every machine we know. */
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_rseq
#if defined(__x86_64__)
#define SYS_rseq 334
#else
#define SYS_rseq 293
#endif
#endif
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000
#endif
#ifndef O_PATH
#define O_PATH 010000000
#endif

/* SC(number, arguments...): a raw system call. Result or -errno. */
#define TT_SC7(n, a, b, c, d, e, f, ...) \
  tt_syscall((long)(n), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define SC(...) TT_SC7(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)

/* struct clone_args of linux/sched.h in its first published size plus set_tid (88 bytes, 5.5). */
struct tt_clone_args {
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
  uint64_t set_tid, set_tid_size, cgroup;
};

/* struct sigaction as the kernel has it; sigset_t is 8 bytes there. */
struct tt_sigaction {
  void *handler;
  unsigned long flags;
  void *restorer;
  uint64_t mask;
};

/* --- memory ------------------------------------------------------------------------------- */

/* Hidden, so that what the compiler makes of loops and assignments stays in this library. */
void *memcpy(void *to, const void *from, size_t n);
void *memmove(void *to, const void *from, size_t n);
void *memset(void *to, int byte, size_t n);
int memcmp(const void *a, const void *b, size_t n);
int bcmp(const void *a, const void *b, size_t n);
size_t strlen(const char *s);

#define TT_LARGEST_PAGE 65536 /* of the machines that we know */

static inline size_t tt_whole_pages(size_t size) {
  return (size + TT_LARGEST_PAGE - 1) & ~((size_t)TT_LARGEST_PAGE - 1);
}

static inline long tt_map_memory(size_t size) {
  return SC(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static inline int tt_failed(long r) { return (unsigned long)r > -4096UL; }

/* --- time --------------------------------------------------------------------------------- */

static inline uint64_t tt_now_ns(void) {
  struct timespec t = {0, 0};
  SC(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* --- futex (linux/futex.h) ------------------------------------------------------------------ */

#define TT_FUTEX_WAIT_PRIVATE 128
#define TT_FUTEX_WAKE_PRIVATE 129

static inline void tt_futex_wait(uint32_t *word, uint32_t value, uint64_t limit_ns) {
  struct timespec t = {(time_t)(limit_ns / 1000000000u), (long)(limit_ns % 1000000000u)};
  SC(SYS_futex, word, TT_FUTEX_WAIT_PRIVATE, value, limit_ns ? &t : 0);
}

static inline void tt_futex_wake(uint32_t *word) {
  SC(SYS_futex, word, TT_FUTEX_WAKE_PRIVATE, INT32_MAX);
}

/* --- descriptors -------------------------------------------------------------------------- */

static inline int tt_open(const char *path, int flags) {
  return (int)SC(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0);
}

static inline void tt_close(int fd) {
  if (fd >= 0) SC(SYS_close, fd);
}

static inline long tt_retry_read(int fd, void *to, size_t n) {
  long r;
  do r = SC(SYS_read, fd, to, n);
  while (r == -EINTR);
  return r;
}

#endif
