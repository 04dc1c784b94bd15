/* stop.c: see stop.h. */
#include "stop.h"

#include <linux/prctl.h>

#include "text.h"

#define SLAB_SLOTS 64
#define DOUBT_NS 2000000u /* without an answer: a closer look */
#define TICK_NS 10000000u /* unit of times in /proc: USER_HZ is 100 on both machines */
#define ENTRIES_SIZE 8192
#define PF_IO_WORKER 0x10
#define PF_USER_WORKER 0x4000

/* What the threads in the handler are to do: the low bits of the order word. The rest counts. */
enum order { ORDER_GO, ORDER_DISARM, ORDER_REARM, ORDER_MASK = 3, ORDER_STEP = 4 };

struct slab {
  struct slab *older;
  struct tt_slot slots[SLAB_SLOTS];
};

/* glibc 2.35 and later: where its rseq area lies from the thread pointer; size 0: not registered.
 * Weak, since older ones have neither. */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

static struct {
  uint32_t order;    /* atomic; the futex that stopped threads wait on */
  uint32_t reports;  /* atomic; the futex that the leader waits on */
  uint32_t answers;  /* atomic: threads that obeyed the last ORDER_DISARM or ORDER_REARM */
  uint32_t received; /* atomic: our signals that reached a handler */
  uint32_t sent;
  int installed;
  struct tt_sigaction previous; /* whom the signal belonged to */
  struct slab *slabs;
  struct tt_slot *unused;
} stop;

int tt_thread_note(struct tt_thread *t) {
  t->tid = (int32_t)SC(SYS_gettid);
  t->pointer = tt_thread_pointer();
  t->extra_register = tt_extra_register();
  if (SC(SYS_prctl, PR_GET_TID_ADDRESS, &t->clear_tid)) return TT_THREADS ? -ENOTSUP : 0;
  SC(SYS_get_robust_list, 0, &t->robust, &t->robust_size);
  SC(SYS_prctl, PR_GET_NAME, t->name);
  t->slack = SC(SYS_prctl, PR_GET_TIMERSLACK);
  return 0;
}

uintptr_t tt_rseq_area(uintptr_t pointer) {
  if (!&__rseq_size || !&__rseq_offset || !__rseq_size) return 0;
  return pointer + (uintptr_t)__rseq_offset;
}

int tt_rseq(uintptr_t pointer, int registered) {
  if (!TT_THREADS) return registered ? 0 : -ENOTSUP;
  uintptr_t area = tt_rseq_area(pointer);
  if (!area) return 0;
  /* glibc registers at least 32 bytes, and since 2.41 as much as the kernel has features for */
  for (unsigned size = 32; size <= 256; size += size < 64 ? 4 : 32)
    if (size == 32 || size >= __rseq_size)
      if (SC(SYS_rseq, area, size, registered ? 0 : 1, TT_RSEQ_SIGNATURE) == 0) return 0;
  return -EINVAL;
}

/* --- in the threads that are stopped ------------------------------------------------------- */

static void disarm(const struct tt_thread *t, int disarmed) {
  SC(SYS_set_tid_address, disarmed ? 0 : t->clear_tid);
  if (t->robust_size) SC(SYS_set_robust_list, disarmed ? 0 : t->robust, t->robust_size);
}

static void wait_for_orders(uint32_t turn, const struct tt_thread *own) {
  for (;;) {
    uint32_t now = __atomic_load_n(&stop.order, __ATOMIC_ACQUIRE);
    if (now == turn) {
      tt_futex_wait(&stop.order, turn, 0);
      continue;
    }
    turn = now;
    if ((turn & ORDER_MASK) == ORDER_GO) return;
    disarm(own, (turn & ORDER_MASK) == ORDER_DISARM);
    __atomic_fetch_add(&stop.answers, 1, __ATOMIC_RELEASE);
    tt_futex_wake(&stop.answers);
  }
}

static int is_ours(const siginfo_t *info) {
  if (info->si_code != SI_QUEUE || info->si_pid != (int)SC(SYS_getpid)) return 0;
  uintptr_t p = (uintptr_t)info->si_value.sival_ptr;
  for (struct slab *s = __atomic_load_n(&stop.slabs, __ATOMIC_ACQUIRE); s; s = s->older)
    if (p >= (uintptr_t)s->slots && p < (uintptr_t)(s->slots + SLAB_SLOTS)) return 1;
  return 0;
}

static void pass_on(int number, siginfo_t *info, void *context) {
  void *handler = stop.previous.handler;
  if (handler == (void *)SIG_IGN) return;
  if (handler == (void *)SIG_DFL) {
    struct tt_sigaction action = {0, 0, 0, 0};
    SC(SYS_rt_sigaction, number, &action, 0, 8);
    SC(SYS_tgkill, SC(SYS_getpid), SC(SYS_gettid), number);
    return;
  }
  ((void (*)(int, siginfo_t *, void *))handler)(number, info, context);
}

static void on_signal(int number, siginfo_t *info, void *context) {
  if (!is_ours(info)) {
    pass_on(number, info, context);
    return;
  }
  struct tt_slot *slot = info->si_value.sival_ptr;
  char room[TT_STACK_ROOM] __attribute__((aligned(16)));
  uint32_t state = TT_SLOT_CANCELLED;
  __atomic_fetch_add(&stop.received, 1, __ATOMIC_RELAXED);
  if (slot->tid != (int32_t)SC(SYS_gettid)) return;
  if (__atomic_compare_exchange_n(&slot->state, &state, TT_SLOT_FREE, 0, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE))
    return;
  if (state != TT_SLOT_SENT) return;
  /* copies: the slot is the leader's as soon as it says reported, and may be another thread's
   * before this one runs again */
  uint32_t turn = slot->turn;
  struct tt_thread own;
  memset(&own, 0, sizeof own);
  slot->error = tt_thread_note(&own);
  slot->thread = own;
  slot->ucontext = context;
  slot->room = room + TT_STACK_ROOM;
  __asm__ volatile("" : : "r"(room) : "memory");
  state = TT_SLOT_SENT;
  if (!__atomic_compare_exchange_n(&slot->state, &state, TT_SLOT_REPORTED, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    __atomic_store_n(&slot->state, TT_SLOT_FREE, __ATOMIC_RELEASE); /* the leader gave up */
    return;
  }
  __atomic_fetch_add(&stop.reports, 1, __ATOMIC_RELEASE);
  tt_futex_wake(&stop.reports);
  wait_for_orders(turn, &own);
}

/* --- in the leader ---------------------------------------------------------------------------- */

static void give_order(enum order order) {
  uint32_t next = (stop.order & ~(uint32_t)ORDER_MASK) + ORDER_STEP + order;
  __atomic_store_n(&stop.order, next, __ATOMIC_RELEASE);
  tt_futex_wake(&stop.order);
}

static void install(void) {
  struct tt_sigaction ours = {(void *)on_signal,
                              SA_SIGINFO | SA_RESTART | SA_ONSTACK | TT_SA_RESTORER,
                              (void *)tt_restorer, ~(uint64_t)0};
  struct tt_sigaction before;
  SC(SYS_rt_sigaction, TT_STOP_SIGNAL, &ours, &before, 8);
  if (before.handler != (void *)on_signal) stop.previous = before;
  stop.installed = 1;
}

/* Only when each signal that was sent has arrived. glibc's own handler would ignore a late one,
 * the default action would end the process. */
static void uninstall(void) {
  if (stop.installed && __atomic_load_n(&stop.received, __ATOMIC_ACQUIRE) == stop.sent) {
    SC(SYS_rt_sigaction, TT_STOP_SIGNAL, &stop.previous, 0, 8);
    stop.installed = 0;
  }
}

static struct tt_slot *take_slot(void) {
  while (!stop.unused) {
    /* those that were cancelled and have arrived since are free again */
    for (struct slab *s = stop.slabs; s; s = s->older)
      for (int i = 0; i < SLAB_SLOTS; i++) {
        struct tt_slot *slot = &s->slots[i];
        if (slot->seen >= 0 || __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE)) continue;
        slot->seen = 0;
        slot->next = stop.unused;
        stop.unused = slot;
      }
    if (stop.unused) break;
    long m = tt_map_memory(sizeof(struct slab));
    if (tt_failed(m)) return 0;
    struct slab *slab = (struct slab *)m;
    for (int i = 0; i < SLAB_SLOTS; i++) slab->slots[i].seen = -1;
    slab->older = stop.slabs;
    __atomic_store_n(&stop.slabs, slab, __ATOMIC_RELEASE);
  }
  struct tt_slot *slot = stop.unused;
  stop.unused = slot->next;
  return slot;
}

struct look {
  struct tt_stopped *stopped;
  struct tt_slot *table[1024]; /* by thread id */
  int32_t pid, tid;
  int32_t missing, first_missing, listed;
};

static uint64_t now_since_boot_ns(void) {
  struct timespec t = {0, 0};
  SC(SYS_clock_gettime, CLOCK_BOOTTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int signal_slot(struct look *look, struct tt_slot *slot) {
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = TT_STOP_SIGNAL;
  info.si_code = SI_QUEUE;
  info.si_pid = look->pid;
  info.si_uid = (uid_t)SC(SYS_getuid);
  info.si_value.sival_ptr = slot;
  slot->sent_ns = now_since_boot_ns();
  long r = SC(SYS_rt_tgsigqueueinfo, look->pid, slot->tid, TT_STOP_SIGNAL, &info);
  if (r == 0) slot->sent++, stop.sent++;
  /* gone meanwhile, or too many signals queued: tried again as long as it is listed */
  return r == 0 || r == -ESRCH || r == -EAGAIN ? 0 : (int)r;
}

struct task_facts {
  uint64_t flags;      /* PF_*, linux/sched.h */
  uint64_t threads;    /* of the process */
  uint64_t started_ns; /* since boot, rounded down to a tick of 10 ms */
};

/* Fields 9, 20 and 22 of a stat file (proc_pid_stat(5)); the name in the second may hold anything.
 * 0 or -errno. */
static int read_facts(const char *path, struct task_facts *facts) {
  char stat[512];
  int fd = tt_open(path, O_RDONLY);
  if (fd < 0) return fd;
  long n = tt_retry_read(fd, stat, sizeof stat);
  tt_close(fd);
  if (n <= 0) return n ? (int)n : -ESRCH;
  struct tt_text text = {stat, stat + n};
  const char *name_end = text.end;
  while (name_end > text.at && name_end[-1] != ')') name_end--;
  text.at = name_end;
  for (int field = 3; field < 9; field++) tt_text_word(&text);
  facts->flags = tt_text_number(&text);
  for (int field = 10; field < 20; field++) tt_text_word(&text);
  facts->threads = tt_text_number(&text);
  tt_text_word(&text);
  facts->started_ns = tt_text_number(&text) * TICK_NS;
  return 0;
}

/* A thread that has not answered for a while. It may be one that the kernel runs in our process
 * (io_uring, vhost), which takes no signal and never runs user code. Or it is a new one that has
 * the id of one that ended before our signal reached it. To any other thread no second signal may
 * be sent: it would still be pending when the first has stopped it, and look like one of glibc's.
 */
static int meet_again(struct look *look, struct tt_slot *slot) {
  struct task_facts facts;
  char path[48];
  if (!slot->sent) return signal_slot(look, slot);
  if (now_since_boot_ns() - slot->sent_ns < DOUBT_NS) return 0;
  tt_text_path(path, "/proc/self/task/", (uint64_t)slot->tid, "/stat");
  if (read_facts(path, &facts)) return 0;
  if (facts.flags & (PF_IO_WORKER | PF_USER_WORKER)) {
    slot->worker = slot->seen = 1;
    look->missing--;
    return 0;
  }
  return facts.started_ns >= slot->sent_ns ? signal_slot(look, slot) : 0;
}

static int meet(struct look *look, int32_t tid) {
  struct tt_slot **place = &look->table[(uint32_t)tid % 1024], *slot = *place;
  while (slot && slot->tid != tid) slot = slot->hashed;
  if (slot && slot->seen) return 0;
  if (!look->missing++) look->first_missing = tid; /* the one to name when time is up */
  if (slot) return meet_again(look, slot);
  if (!TT_THREADS) return -ENOTSUP;
  slot = take_slot();
  if (!slot) return -ENOMEM;
  slot->tid = tid;
  slot->turn = stop.order;
  slot->seen = 0;
  slot->affinity = 0;
  slot->sched = 0;
  slot->disk_priority = -1;
  slot->error = 0;
  slot->sent = 0;
  slot->worker = 0;
  __atomic_store_n(&slot->state, TT_SLOT_SENT, __ATOMIC_RELEASE);
  slot->hashed = *place;
  *place = slot;
  slot->next = look->stopped->first;
  look->stopped->first = slot;
  return signal_slot(look, slot);
}

/* One look at /proc/self/task: signal whoever is new, count whoever had not reported before. When
 * nobody is missing, nobody was left who could have started another thread. But the listing breaks
 * off early when the thread that it stands at ends (next_tid in fs/proc/base.c), so the kernel must
 * not count more threads than were listed. */
static int look_around(struct look *look, int directory, char *entries) {
  for (struct tt_slot *s = look->stopped->first; s; s = s->next)
    s->seen = s->worker || __atomic_load_n(&s->state, __ATOMIC_ACQUIRE) == TT_SLOT_REPORTED;
  look->missing = look->listed = 0;
  long n = SC(SYS_lseek, directory, 0, SEEK_SET);
  while (n >= 0 && (n = SC(SYS_getdents64, directory, entries, ENTRIES_SIZE)) > 0)
    for (long at = 0; at < n;) {
      char *entry = entries + at;
      uint16_t length;
      memcpy(&length, entry + 16, 2); /* struct linux_dirent64: ino, off, reclen, type, name */
      struct tt_text name = {entry + 19, entry + length};
      int32_t tid = (int32_t)tt_text_number(&name);
      if (tid) look->listed++;
      if (tid && tid != look->tid) {
        int error = meet(look, tid);
        if (error) return error;
      }
      at += length;
    }
  if (n < 0 || look->missing) return (int)n;
  struct task_facts facts;
  int error = read_facts("/proc/self/stat", &facts);
  if (!error && facts.threads != (uint64_t)look->listed) look->missing = 1;
  return error;
}

static int stop_all(struct look *look, int directory, uint64_t until_ns) {
  char entries[ENTRIES_SIZE];
  for (;;) {
    uint32_t reports = __atomic_load_n(&stop.reports, __ATOMIC_ACQUIRE);
    int error = look_around(look, directory, entries);
    if (error || !look->missing) return error;
    if (tt_now_ns() > until_ns) {
      look->stopped->blocking_tid = look->first_missing;
      return -ETIMEDOUT;
    }
    /* wait until as many have reported as were missing, but look again soon: some may have ended */
    uint64_t look_again = tt_now_ns() + 1000000;
    uint32_t aim = reports + (uint32_t)look->missing, have = reports;
    while ((int32_t)(aim - have) > 0 && tt_now_ns() < look_again) {
      tt_futex_wait(&stop.reports, have, 500000);
      have = __atomic_load_n(&stop.reports, __ATOMIC_ACQUIRE);
    }
  }
}

static void free_slot(struct tt_slot *slot) {
  __atomic_store_n(&slot->state, TT_SLOT_FREE, __ATOMIC_RELEASE);
  slot->seen = 0;
  slot->next = stop.unused;
  stop.unused = slot;
}

void tt_release(struct tt_stopped *stopped) {
  for (struct tt_slot *s = stopped->first, *next; s; s = next) {
    uint32_t state = TT_SLOT_SENT;
    next = s->next;
    s->seen = -1; /* a cancelled slot is found again by take_slot, once its signal has arrived */
    if (!__atomic_compare_exchange_n(&s->state, &state, TT_SLOT_CANCELLED, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
      free_slot(s);
  }
  stopped->first = 0;
  give_order(ORDER_GO);
  uninstall();
}

int tt_stop(struct tt_stopped *stopped, uint32_t timeout_ms) {
  struct look look;
  memset(&look, 0, sizeof look);
  look.stopped = stopped;
  look.pid = (int32_t)SC(SYS_getpid);
  look.tid = (int32_t)SC(SYS_gettid);
  memset(stopped, 0, sizeof *stopped);
  int directory = tt_open("/proc/self/task", O_RDONLY | O_DIRECTORY);
  if (directory < 0) return directory;
  if (TT_THREADS) install();
  uint64_t until = tt_now_ns() + (uint64_t)timeout_ms * 1000000u;
  int error = stop_all(&look, directory, until);
  tt_close(directory);
  /* threads that ended before they could report are not there to be brought back */
  struct tt_slot *all = stopped->first;
  stopped->first = 0;
  for (struct tt_slot *s = all, *next; s; s = next) {
    next = s->next;
    if (!error && __atomic_load_n(&s->state, __ATOMIC_ACQUIRE) == TT_SLOT_REPORTED && s->error)
      error = s->error;
    if (!error && s->worker) stopped->workers++;
    if (!error && (!s->seen || s->worker)) {
      stop.sent -= s->sent;
      free_slot(s);
      continue;
    }
    if (!error) stop.sent -= s->sent - 1; /* one arrived; any other went to a thread that is gone */
    s->next = stopped->first;
    stopped->first = s;
    stopped->count++;
  }
  if (error) tt_release(stopped);
  return error;
}

void tt_disarm(struct tt_stopped *stopped, int disarmed) {
  __atomic_store_n(&stop.answers, 0, __ATOMIC_RELEASE);
  give_order(disarmed ? ORDER_DISARM : ORDER_REARM);
  for (;;) {
    uint32_t answers = __atomic_load_n(&stop.answers, __ATOMIC_ACQUIRE);
    if (answers >= (uint32_t)stopped->count) return;
    tt_futex_wait(&stop.answers, answers, 10000000);
  }
}

void tt_forget_signals(void) {
  stop.received = stop.sent;
  uninstall();
}

void tt_forget_slots(struct tt_stopped *stopped) {
  (void)stopped;
  stop.unused = 0;
  for (struct slab *s = stop.slabs; s; s = s->older)
    for (int i = 0; i < SLAB_SLOTS; i++) free_slot(&s->slots[i]);
  give_order(ORDER_GO);
}
