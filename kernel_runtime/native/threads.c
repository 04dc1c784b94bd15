/* threads.c: see threads.h. */
#include "threads.h"

#include <linux/prctl.h>

#define IOPRIO_WHO_PROCESS 1
#define MOST_CPUS_BYTES 1024 /* sched_getaffinity(2): 8192 processors */

enum gate { GATE_SHUT, GATE_OPEN };

static struct {
  uint32_t gate;  /* atomic; the futex that woken threads wait on */
  uint32_t ready; /* atomic; the futex that their maker waits on */
} waking;

/* --- describing ------------------------------------------------------------------------------ */

static int note_scheduling(struct tt_arena *arena, struct tt_slot *slot,
                           const struct tt_sched *ours, long disk, const char *cpus,
                           long cpus_size) {
  char mask[MOST_CPUS_BYTES];
  struct tt_sched sched;
  memset(&sched, 0, sizeof sched);
  long n = SC(SYS_sched_getaffinity, slot->tid, sizeof mask, mask);
  if (n > 0 && (n != cpus_size || memcmp(mask, cpus, (size_t)n))) {
    slot->affinity = tt_alloc(arena, (size_t)n);
    if (!slot->affinity) return -ENOMEM;
    memcpy(slot->affinity, mask, (size_t)n);
    slot->affinity_size = (size_t)n;
  }
  if (SC(SYS_sched_getattr, slot->tid, &sched, sizeof sched, 0) == 0 &&
      memcmp(&sched, ours, sizeof sched)) {
    slot->sched = tt_alloc(arena, sizeof sched);
    if (!slot->sched) return -ENOMEM;
    *slot->sched = sched;
  }
  long priority = SC(SYS_ioprio_get, IOPRIO_WHO_PROCESS, slot->tid);
  if (priority >= 0 && priority != disk) slot->disk_priority = (int32_t)priority;
  return 0;
}

int tt_threads_describe(struct tt_arena *arena, struct tt_stopped *stopped) {
  char cpus[MOST_CPUS_BYTES];
  struct tt_sched ours;
  memset(&ours, 0, sizeof ours);
  long n = SC(SYS_sched_getaffinity, 0, sizeof cpus, cpus);
  SC(SYS_sched_getattr, 0, &ours, sizeof ours, 0);
  long disk = SC(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0);
  for (struct tt_slot *s = stopped->first; s; s = s->next) {
    int error = note_scheduling(arena, s, &ours, disk, cpus, n);
    if (error) return error;
  }
  return 0;
}

/* --- processes ------------------------------------------------------------------------------- */

/* The kernel refuses the old id: not allowed, unknown call, taken, or not valid in this namespace.
 * The same errors stand for a seccomp profile that refuses clone3 as such. */
static int is_refusal(long r) {
  return r == -EPERM || r == -ENOSYS || r == -EEXIST || r == -EINVAL || r == -EACCES;
}

/* An id that is taken may be that of a thread on its last steps: since Linux 6.15 a process can be
 * reaped a moment before the ids of its threads are free (release_task in kernel/exit.c). */
static int try_again(long r, const struct tt_ids *ids) {
  struct timespec moment = {0, 200000};
  if (r != -EEXIST || tt_now_ns() > ids->until_ns) return 0;
  SC(SYS_nanosleep, &moment, 0);
  return 1;
}

static void fill(struct tt_clone_args *args, uint64_t flags, const struct tt_thread *thread,
                 uint64_t *id) {
  memset(args, 0, sizeof *args);
  args->flags = flags;
  if (thread && thread->clear_tid) {
    args->flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
    args->child_tid = (uintptr_t)thread->clear_tid;
  }
  if (thread) {
    *id = 0;
    memcpy(id, &thread->tid, sizeof thread->tid);
    args->set_tid = (uintptr_t)id;
    args->set_tid_size = 1;
  }
}

/* clone by the old call. No signal at the end: CLONE_PARENT takes that of the calling process. */
#define PLAIN(args, stack) \
  TT_CLONE_ARGS((long)((args).flags), (long)(stack), (long)((args).child_tid), (long)((args).tls))

long tt_clone_copy(const struct tt_thread *leader, struct tt_ids *ids) {
  struct tt_clone_args args;
  uint64_t id;
  fill(&args, CLONE_PARENT, leader, &id);
  if (leader && ids->want) {
    long r;
    do r = SC(SYS_clone3, &args, sizeof args);
    while (try_again(r, ids));
    if (!is_refusal(r) || ids->insist) return r;
  }
  if (leader) ids->kept = 0;
  return SC(SYS_clone, PLAIN(args, 0));
}

long tt_clone_takeover(const struct tt_thread *leader, struct tt_ids *ids) {
  struct tt_clone_args args;
  uint64_t id;
  fill(&args, CLONE_PARENT | CLONE_VM, leader, &id);
  if (leader && ids->want) {
    long r;
    do r = tt_clone_leave(SYS_clone3, (long)&args, sizeof args, 0, 0, 0);
    while (try_again(r, ids));
    if (!is_refusal(r) || ids->insist) return r;
  }
  if (leader) ids->kept = 0;
  return tt_clone_leave(SYS_clone, PLAIN(args, 0));
}

/* --- threads --------------------------------------------------------------------------------- */

/* As in glibc's pthread_create, sysdeps/unix/sysv/linux/createthread.c. */
#define THREAD_FLAGS \
  (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)

static void come_back(void *arg) {
  struct tt_slot *slot = arg;
  const struct tt_thread *t = &slot->thread;
  void *ucontext = slot->ucontext; /* once the gate is open the slot may serve another thread */
  slot->error = 0;
  slot->woken_tid = (int32_t)SC(SYS_gettid);
  if (t->robust_size) SC(SYS_set_robust_list, t->robust, t->robust_size);
  tt_rseq(t->pointer, 1);
  tt_set_extra_register(t->extra_register);
  SC(SYS_prctl, PR_SET_NAME, t->name);
  if (slot->affinity && SC(SYS_sched_setaffinity, 0, slot->affinity_size, slot->affinity))
    slot->error |= 1;
  if (slot->sched && SC(SYS_sched_setattr, 0, slot->sched, 0)) slot->error |= 2;
  if (slot->disk_priority >= 0 &&
      SC(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, slot->disk_priority))
    slot->error |= 4;
  SC(SYS_prctl, PR_SET_TIMERSLACK, t->slack);
  for (int s = 1; s <= 64; s++)
    if (t->pending >> (s - 1) & 1) SC(SYS_tgkill, SC(SYS_getpid), SC(SYS_gettid), s);
  __atomic_fetch_add(&waking.ready, 1, __ATOMIC_RELEASE);
  tt_futex_wake(&waking.ready);
  while (__atomic_load_n(&waking.gate, __ATOMIC_ACQUIRE) == GATE_SHUT)
    tt_futex_wait(&waking.gate, GATE_SHUT, 0);
  tt_sigreturn(ucontext);
}

static long make(struct tt_slot *slot, struct tt_ids *ids) {
  struct tt_clone_args args;
  uint64_t id;
  fill(&args, THREAD_FLAGS, &slot->thread, &id);
  if (slot->thread.pointer) {
    args.flags |= CLONE_SETTLS;
    args.tls = slot->thread.pointer;
  }
  if (ids->want) {
    args.stack = (uintptr_t)slot->room - TT_STACK_ROOM;
    args.stack_size = TT_STACK_ROOM;
    long r;
    do r = tt_clone_call(SYS_clone3, (long)&args, sizeof args, 0, 0, 0, come_back, slot);
    while (try_again(r, ids));
    if (!is_refusal(r) || ids->insist) return r;
  }
  ids->kept = 0;
  return tt_clone_call(SYS_clone, PLAIN(args, slot->room), come_back, slot);
}

int tt_threads_make(struct tt_stopped *stopped, struct tt_ids *ids) {
  waking.gate = GATE_SHUT;
  waking.ready = 0;
  for (struct tt_slot *s = stopped->first; s; s = s->next) {
    long r = make(s, ids);
    if (r < 0) return (int)r;
  }
  for (;;) {
    uint32_t ready = __atomic_load_n(&waking.ready, __ATOMIC_ACQUIRE);
    if (ready >= (uint32_t)stopped->count) return 0;
    tt_futex_wait(&waking.ready, ready, 0);
  }
}

void tt_threads_go(void) {
  __atomic_store_n(&waking.gate, GATE_OPEN, __ATOMIC_RELEASE);
  tt_futex_wake(&waking.gate);
}

int tt_thread_start(void (*fn)(void *), void *arg, void *stack_end, uint32_t *running) {
  struct tt_clone_args args;
  memset(&args, 0, sizeof args);
  args.flags = THREAD_FLAGS | CLONE_CHILD_CLEARTID;
  args.child_tid = (uintptr_t)running;
  *running = 1;
  long r = tt_clone_call(SYS_clone, PLAIN(args, stack_end), fn, arg);
  return r < 0 ? (int)r : 0;
}
