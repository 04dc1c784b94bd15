/* keys.c: see keys.h. Sources: Linux, Documentation/arch/arm64/pointer-authentication.rst and
 * arch/arm64/kernel/ptrace.c; ptrace(2); Documentation/admin-guide/LSM/Yama.rst. */
#include "keys.h"

#if TT_POINTER_KEYS

#include <linux/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define STACK_SIZE 8192
#define ADDRESS_KEYS 0x407
#define GENERIC_KEYS 0x408
#define GET_ENABLED_KEYS 61 /* Linux 5.13 */
#define SET_ENABLED_KEYS 60
#define ALL_ENABLED_KEYS 15
#define HWCAP_ADDRESS_KEYS ((uint64_t)1 << 30)
#define HWCAP_GENERIC_KEYS ((uint64_t)1 << 31)
enum trace { TRACE_DETACH = 17, TRACE_GET = 0x4204, TRACE_SET, TRACE_SEIZE, TRACE_INTERRUPT };

struct errand {
  struct tt_keys *keys;
  enum trace what; /* TRACE_GET or TRACE_SET */
  int32_t whom, error;
  uint32_t allowed; /* a futex: 1 once the helper may */
};

static long registers(const struct errand *e, long set, void *data, size_t size) {
  struct iovec part = {data, size};
  return SC(SYS_ptrace, e->what, e->whom, set, &part);
}

static long run(struct errand *e) {
  struct tt_keys *keys = e->keys;
  int status;
  long r = SC(SYS_ptrace, TRACE_SEIZE, e->whom, 0, 0);
  if (r) return r;
  r = SC(SYS_ptrace, TRACE_INTERRUPT, e->whom, 0, 0);
  if (!r) r = SC(SYS_wait4, e->whom, &status, __WALL, 0);
  if (r > 0 && !WIFSTOPPED(status)) r = -ESRCH;
  if (r > 0) r = 0;
  if (!r && keys->has & TT_HAS_ADDRESS_KEYS)
    r = registers(e, ADDRESS_KEYS, keys->address, sizeof keys->address);
  if (!r && keys->has & TT_HAS_GENERIC_KEYS)
    r = registers(e, GENERIC_KEYS, keys->generic, sizeof keys->generic);
  SC(SYS_ptrace, TRACE_DETACH, e->whom, 0, 0);
  return r;
}

static void help(void *arg) {
  struct errand *e = arg;
  while (!__atomic_load_n(&e->allowed, __ATOMIC_ACQUIRE)) tt_futex_wait(&e->allowed, 0, 0);
  e->error = (int32_t)run(e);
  for (;;) SC(SYS_exit_group, 0);
}

/* The helper is a process, as a thread may not trace another one of its own process. It shares our
 * memory and runs on a part of our stack. Yama lets a child trace its parent only where that says so.
 */
TT_UNSIGNED static int send_out(struct tt_keys *keys, enum trace what) {
  char stack[STACK_SIZE] __attribute__((aligned(16)));
  struct errand errand = {keys, what, (int32_t)SC(SYS_getpid), -EPERM, 0};
  int status;
  long pid = tt_clone_call(SYS_clone, TT_CLONE_ARGS((long)CLONE_VM, (long)(stack + sizeof stack), 0L, 0L),
                           help, &errand);
  if (pid < 0) return (int)pid;
  SC(SYS_prctl, PR_SET_PTRACER, pid);
  __atomic_store_n(&errand.allowed, 1, __ATOMIC_RELEASE);
  tt_futex_wake(&errand.allowed);
  long r;
  do r = SC(SYS_wait4, pid, &status, __WALL, 0);
  while (r == -EINTR);
  SC(SYS_prctl, PR_SET_PTRACER, 0);
  return __atomic_load_n(&errand.error, __ATOMIC_ACQUIRE);
}

void tt_keys_note(struct tt_keys *keys, uint64_t hwcap) {
  memset(keys, 0, sizeof *keys);
  if (hwcap & HWCAP_ADDRESS_KEYS) keys->has |= TT_HAS_ADDRESS_KEYS;
  if (hwcap & HWCAP_GENERIC_KEYS) keys->has |= TT_HAS_GENERIC_KEYS;
  if (!keys->has) return;
  keys->enabled = (int32_t)SC(SYS_prctl, GET_ENABLED_KEYS, 0, 0, 0, 0);
  keys->error = send_out(keys, TRACE_GET);
}

TT_UNSIGNED int tt_keys_set(const struct tt_keys *keys) {
  if (!keys->has) return 0;
  int error = send_out((struct tt_keys *)keys, TRACE_SET);
  if (!error && keys->enabled >= 0)
    error = (int)SC(SYS_prctl, SET_ENABLED_KEYS, ALL_ENABLED_KEYS, keys->enabled, 0, 0);
  return error;
}

#else

void tt_keys_note(struct tt_keys *keys, uint64_t hwcap) {
  (void)hwcap;
  memset(keys, 0, sizeof *keys);
}

int tt_keys_set(const struct tt_keys *keys) {
  (void)keys;
  return 0;
}

#endif
