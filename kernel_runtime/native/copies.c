/* copies.c: see copies.h. */
#include "copies.h"

#include <linux/filter.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/resource.h>

#include "memory.h"

#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_LAST (2 << 13 | 7) /* the last of IOPRIO_CLASS_BE; ioprio_set(2) */
#define DETAIL_SIZE 4200      /* a path, flags and offset */

/* --- at the freeze -------------------------------------------------------------------------- */

int tt_copies_describe(struct tt_state *state) {
  const struct tt_freeze *f = state->freeze;
  const uint64_t *idents = (const uint64_t *)(uintptr_t)f->python_threads;
  if (!f->python_count) return 0;
  if (!idents) return -EINVAL;
  /* pthread_self() lies at a fixed distance from the thread pointer: 0 on x86-64 */
  uint64_t distance = idents[0] - state->leader.pointer;
  for (struct tt_slot *s = state->stopped.first; s; s = s->next) {
    s->python = 0;
    for (uint32_t i = 1; i < f->python_count && !s->python; i++)
      s->python = s->thread.pointer + distance == idents[i];
  }
  return 0;
}

/* --- trimming --------------------------------------------------------------------------------- */

/* Threads that run Python stay where they were stopped: they are not made. */
static void trim_threads(struct tt_stopped *stopped) {
  struct tt_slot **place = &stopped->first;
  while (*place) {
    struct tt_slot *s = *place;
    s->thread.pending = 0;
    s->sched = 0; /* all run at the same low priority */
    s->disk_priority = -1;
    if (s->python) {
      *place = s->next;
      stopped->count--;
    } else {
      place = &s->next;
    }
  }
}

static int report_file(struct tt_state *state, const struct tt_desc *d) {
  char octal[24], *digit = octal + sizeof octal - 1;
  uint64_t flags = (uint64_t)(uint32_t)d->flags;
  int error = tt_buffer_reserve(&state->text, DETAIL_SIZE);
  size_t length = strlen(d->path);
  if (error) return error;
  if (length >= 4096) return 0; /* cannot be: read_link gives less */
  *digit = 0;
  do *--digit = (char)('0' + (flags & 7));
  while (flags >>= 3);
  char *to = state->text.data;
  size_t n = strlen(digit);
  memcpy(to, digit, n);
  to[n++] = ' ';
  n += tt_text_decimal(to + n, (uint64_t)(d->offset > 0 ? d->offset : 0));
  to[n++] = ' ';
  memcpy(to + n, d->path, length + 1);
  for (const struct tt_number *number = d->numbers; number; number = number->next) {
    char subject[24];
    tt_text_decimal(subject, (uint64_t)number->fd);
    tt_report(&state->report, "file", subject, to);
  }
  return 0;
}

static int is_named_file(const struct tt_desc *d) {
  return S_ISREG(d->mode) && d->path &&
         (d->kind == TT_KIND_PATH ||
          (d->kind == TT_KIND_OBJECT && d->u.object->kind == TT_OBJECT_SHM));
}

/* What stays is what we pass, and what native pools wait with and nobody else can see: epoll sets
 * and eventfds. Some pools abort when waiting fails. Of the rest each number is taken by a
 * descriptor that fails, lest a file object of the user's write into, or close, one of ours. */
static int trim_descriptors(struct tt_state *state) {
  for (struct tt_desc *d = state->descs; d; d = d->next) {
    if (is_named_file(d)) {
      int error = report_file(state, d);
      if (error) return error;
    }
    d->locks = 0;
    switch (d->kind) {
      case TT_KIND_LINK:
      case TT_KIND_OUT:
      case TT_KIND_ERR:
      case TT_KIND_EPOLL:
      case TT_KIND_EVENTFD: break;
      default: d->kind = TT_KIND_DEAD;
    }
  }
  state->pipes = 0;
  return 0;
}

static int is_mapped(const struct tt_state *state, const struct tt_object *o) {
  for (const struct tt_map *m = state->maps; m; m = m->next)
    if (m->object == o) return 1;
  return 0;
}

/* Contents that were copied aside go to memory that only the copy has. Files are mapped privately,
 * with what is in them now. */
static void trim_memory(struct tt_state *state) {
  static char name[] = "/memfd:copy";
  struct tt_object **place = &state->objects;
  while (*place) {
    struct tt_object *o = *place;
    if (!is_mapped(state, o)) {
      *place = o->next;
      continue;
    }
    if (o->kind == TT_OBJECT_SHM || o->kind == TT_OBJECT_DELETED) {
      o->kind = TT_OBJECT_MEMFD;
      o->path = name;
      o->seals = -1;
    }
    place = &o->next;
  }
  for (struct tt_map *m = state->maps; m; m = m->next) {
    if (m->object || !m->path) continue;
    m->private = 1;
    if (!(m->prot & PROT_WRITE)) continue; /* caches of libc are mapped so, too */
    tt_report(&state->report, "memory", m->path,
              "a shared mapping of a file: read as the file is now");
  }
}

static void trim_process(struct tt_state *state) {
  static const char name[TT_NAME_SIZE] = "tt-copy";
  memset(state->itimers, 0, sizeof state->itimers);
  memcpy(state->leader.name, name, sizeof name);
  state->leader.pending = state->pending = 0;
  state->timers = 0;
  state->oom_score[0] = 0; /* that of the frozen process is the one to have */
  state->subreaper = 0;
  state->death_signal = SIGKILL; /* where no pid namespace sees to it */
}

int tt_copies_trim(struct tt_state *state) {
  trim_threads(&state->stopped);
  trim_process(state);
  int error = trim_descriptors(state);
  trim_memory(state);
  return error;
}

int tt_copies_streams(const int passed[3]) {
  for (int fd = 0; fd < 3; fd++) {
    long flags = SC(SYS_fcntl, fd, F_GETFL);
    if (flags >= 0 && !(flags & O_PATH)) continue;
    int from = fd ? passed[fd] : -1;
    int own = from < 0;
    if (own) from = tt_open("/dev/null", O_RDWR);
    if (own && from == fd) {
      SC(SYS_fcntl, fd, F_SETFD, 0);
      continue;
    }
    if (from < 0) continue; /* no /dev/null here: it stays one that fails */
    long r = SC(SYS_dup3, from, fd, 0);
    if (own) tt_close(from);
    if (r < 0) return (int)r;
  }
  return 0;
}

/* --- confining ------------------------------------------------------------------------------ */

/* Faults are of the code that runs, and runtimes handle them to go on; 32 and 33 are glibc's. */
static int is_kept(int signal) {
  switch (signal) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGABRT:
    case SIGSYS:
    case SIGKILL:
    case SIGSTOP:
    case 32:
    case TT_STOP_SIGNAL: return 1;
    default: return 0;
  }
}

static void ignore_signals(void) {
  for (int s = 1; s <= 64; s++) {
    struct tt_sigaction action, ignore = {(void *)SIG_IGN, 0, 0, 0};
    if (is_kept(s) || SC(SYS_rt_sigaction, s, 0, &action, 8)) continue;
    if (action.handler != (void *)SIG_DFL) SC(SYS_rt_sigaction, s, &ignore, 0, 8);
  }
}

/* The session and everything else first, a tenth of a busy processor still: at nice 19 (a hundredth),
 * or idle for the disk, nothing would become durable while others keep the machine busy. Where
 * processes are grouped by session (sched_autogroup), priorities count within a group only, and
 * this process is a session. */
void tt_step_back(void) {
  int none = 0; /* struct sched_param */
  SC(SYS_sched_setscheduler, 0, SCHED_OTHER, &none);
  SC(SYS_setpriority, PRIO_PROCESS, 0, TT_BACKGROUND_NICE);
  SC(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_LAST);
  int fd = tt_open("/proc/self/autogroup", O_WRONLY);
  if (fd >= 0) SC(SYS_write, fd, TT_BACKGROUND_NICE_TEXT, sizeof TT_BACKGROUND_NICE_TEXT - 1);
  tt_close(fd);
}

int tt_copies_confine(const struct tt_state *state) {
  const struct tt_freeze *f = state->freeze;
  ignore_signals();
  tt_step_back();
  if (!f->filter_count) return 0;
  struct sock_filter *filter = (struct sock_filter *)(uintptr_t)f->filter;
  for (uint32_t i = 0; i < f->filter_count; i++)
    if (filter[i].k == TT_FILTER_PID) filter[i].k = (uint32_t)SC(SYS_getpid);
  struct sock_fprog program = {(unsigned short)f->filter_count, filter};
  long r = SC(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (!r) r = SC(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
  return (int)r;
}
