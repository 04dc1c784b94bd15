/* arch_plain.h: any other machine or C library. A process with one thread can be frozen and woken
 * under a new id; threads, TT_MOVE and TT_WAKE_CONSUME need the machine code that is missing here.
 */
#ifndef TT_ARCH_PLAIN_H
#define TT_ARCH_PLAIN_H

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TT_POINTER_KEYS 0
#define TT_THREADS 0
#define TT_RSEQ_SIGNATURE 0
#define TT_SA_RESTORER 0

static inline long tt_syscall(long n, long a, long b, long c, long d, long e, long f) {
  int before = errno;
  long r = syscall(n, a, b, c, d, e, f);
  if (r == -1) {
    r = -errno;
    errno = before;
  }
  return r;
}

static inline long tt_clone_leave(long call, long a, long b, long c, long d, long e) {
  (void)call, (void)a, (void)b, (void)c, (void)d, (void)e;
  return -ENOTSUP;
}

static inline long tt_clone_call(long call, long a, long b, long c, long d, long e,
                                 void (*fn)(void *), void *arg) {
  (void)call, (void)a, (void)b, (void)c, (void)d, (void)e, (void)fn, (void)arg;
  return -ENOTSUP;
}

__attribute__((noreturn)) static inline void tt_sigreturn(void *ucontext) {
  (void)ucontext;
  _exit(127);
}

static inline void tt_restorer(void) {}

/* only ever called with flags: the order of the rest is unknown */
#define TT_CLONE_ARGS(flags, stack, ctid, tls) \
  ((flags) & ~(long)(CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID)), (stack), 0L, 0L, 0L

static inline uintptr_t tt_thread_pointer(void) { return 0; }
static inline uintptr_t tt_extra_register(void) { return 0; }
static inline void tt_set_extra_register(uintptr_t v) { (void)v; }
static inline void tt_set_thread_pointer(uintptr_t v) { (void)v; }

/* images need the machine code that is missing here: TT_IMAGE is refused */
#define TT_MACHINE 0
#define TT_CPU_WORDS 32
#define TT_CONTEXT_CODE ""
static inline void tt_cpu(uint32_t words[TT_CPU_WORDS]) { (void)words; }
static inline void tt_cpu_take(const uint32_t words[TT_CPU_WORDS]) { (void)words; }

/* only where a thread has left the way of rounding that it had */
typedef int tt_rounding;
static inline tt_rounding tt_round_to_nearest(void) { return 0; }
static inline void tt_round_as(tt_rounding mode) { (void)mode; }

static inline const char *tt_unsupported(void) { return 0; }

#endif
