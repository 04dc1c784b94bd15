/* fds_events.c: descriptors without a file: epoll, eventfd, timerfd, signalfd, inotify; and those
 * that are named in the report because nothing can bring them back. What the kernel says of each is
 * in its fdinfo (proc(5), Documentation/filesystems/proc.rst). */
#include "fds.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#define TFD_IOC_SET_TICKS_ _IOW('T', 0, uint64_t)

static int slurp_info(struct tt_state *state, int fd) {
  char path[48];
  tt_text_path(path, "/proc/self/fdinfo/", (uint64_t)fd, "");
  return tt_slurp(state, path);
}

/* --- describing ------------------------------------------------------------------------------ */

/* "tfd:        5 events:       19 data:                5  pos:0 ino:.. sdev:.." */
static int add_watch(struct tt_state *state, struct tt_desc *desc, struct tt_text line) {
  struct tt_watch *w = tt_alloc(&state->arena, sizeof *w);
  struct tt_text value;
  struct stat st;
  if (!w) return -ENOMEM;
  w->fd = (int)tt_text_number(&line);
  tt_text_word(&line);
  w->events = (uint32_t)tt_text_hex(&line);
  tt_text_word(&line);
  w->data = tt_text_hex(&line);
  int gone = SC(SYS_fstat, w->fd, &st) != 0;
  tt_text_blanks(&line);
  while (!gone && line.at < line.end) {
    value = tt_text_word(&line);
    if (tt_text_skip(&value, "ino:")) gone = tt_text_hex(&value) != st.st_ino;
    tt_text_blanks(&line);
  }
  if (gone) {
    struct tt_note note = {{0}, 0};
    tt_note(&note, "fd ");
    tt_note_number(&note, (uint64_t)w->fd);
    tt_note(&note, " is watched but was closed since: not watched any more");
    tt_report_fd(state, "epoll", desc->fd, note.text);
    return 0;
  }
  w->next = desc->u.watches;
  desc->u.watches = w;
  return 0;
}

static int describe_epoll(struct tt_state *state, struct tt_desc *desc) {
  struct tt_text text = tt_slurped(state), line;
  int error = 0;
  while (!error && tt_text_line(&text, &line))
    if (tt_text_skip(&line, "tfd:")) error = add_watch(state, desc, line);
  return error;
}

/* Older kernels do not show whether an eventfd is a semaphore. Reading tells: nobody looks now. */
static int is_semaphore(int fd, uint64_t count) {
  uint64_t value = count ? count : 2, rest;
  if (value == 1) return 0; /* cannot be told, and makes no difference until it is raised */
  long flags = SC(SYS_fcntl, fd, F_GETFL);
  SC(SYS_fcntl, fd, F_SETFL, flags | O_NONBLOCK);
  if (!count) SC(SYS_write, fd, &value, 8);
  uint64_t got = 0;
  SC(SYS_read, fd, &got, 8);
  if (count)
    SC(SYS_write, fd, &got, 8);
  else
    while (SC(SYS_read, fd, &rest, 8) == 8) {
    }
  SC(SYS_fcntl, fd, F_SETFL, flags);
  return got == 1;
}

static int describe_eventfd(struct tt_state *state, struct tt_desc *desc) {
  struct tt_text value;
  if (tt_text_field(tt_slurped(state), "eventfd-count:", &value))
    desc->u.event.count = tt_text_hex(&value);
  if (tt_text_field(tt_slurped(state), "eventfd-semaphore:", &value))
    desc->u.event.semaphore = (int)tt_text_number(&value);
  else
    desc->u.event.semaphore = is_semaphore(desc->fd, desc->u.event.count);
  return 0;
}

static int describe_timerfd(struct tt_state *state, struct tt_desc *desc) {
  struct tt_text value;
  if (tt_text_field(tt_slurped(state), "clockid:", &value))
    desc->u.timer.clock = (int)tt_text_number(&value);
  if (tt_text_field(tt_slurped(state), "ticks:", &value))
    desc->u.timer.ticks = tt_text_number(&value);
  if (tt_text_field(tt_slurped(state), "settime flags:", &value)) {
    uint64_t octal = tt_text_number(&value);
    desc->u.timer.flags = (int)(octal % 10) & TFD_TIMER_ABSTIME;
  }
  struct itimerspec *left = &desc->u.timer.left;
  SC(SYS_timerfd_gettime, desc->fd, left);
  if ((desc->u.timer.flags & TFD_TIMER_ABSTIME) &&
      (left->it_value.tv_sec | left->it_value.tv_nsec)) {
    /* what is left is told; a point in time was asked for */
    struct timespec now;
    SC(SYS_clock_gettime, desc->u.timer.clock, &now);
    left->it_value.tv_sec += now.tv_sec;
    left->it_value.tv_nsec += now.tv_nsec;
    if (left->it_value.tv_nsec >= 1000000000) {
      left->it_value.tv_nsec -= 1000000000;
      left->it_value.tv_sec++;
    }
  }
  return 0;
}

static int describe_signalfd(struct tt_state *state, struct tt_desc *desc) {
  struct tt_text value;
  if (tt_text_field(tt_slurped(state), "sigmask:", &value)) desc->u.signals = tt_text_hex(&value);
  return 0;
}

static int describe_pidfd(struct tt_state *state, struct tt_desc *desc) {
  struct tt_text value;
  if (tt_text_field(tt_slurped(state), "Pid:", &value) &&
      tt_text_number(&value) == (uint64_t)SC(SYS_getpid))
    return 0;
  desc->kind = TT_KIND_ENDED;
  tt_report_fd(state, "pidfd", desc->fd, "the process is not there: reads as ended");
  return 0;
}

static int describe_inotify(struct tt_state *state, struct tt_desc *desc) {
  tt_report_fd(state, "inotify", desc->fd, "its watches are not set again");
  return 0;
}

static const struct {
  const char *name; /* behind "anon_inode:" and without brackets; a prefix */
  enum tt_kind kind;
  int (*describe)(struct tt_state *, struct tt_desc *);
  const char *report, *detail;
} kinds[] = {
    {"eventpoll", TT_KIND_EPOLL, describe_epoll, 0, 0},
    {"eventfd", TT_KIND_EVENTFD, describe_eventfd, 0, 0},
    {"timerfd", TT_KIND_TIMERFD, describe_timerfd, 0, 0},
    {"signalfd", TT_KIND_SIGNALFD, describe_signalfd, 0, 0},
    {"inotify", TT_KIND_INOTIFY, describe_inotify, 0, 0},
    {"pidfd", TT_KIND_PIDFD, describe_pidfd, 0, 0},
    {"io_uring", TT_KIND_DEAD, 0, "io_uring", "is not brought back"},
    {"perf_event", TT_KIND_DEAD, 0, "perf", "is not brought back"},
    {"bpf", TT_KIND_DEAD, 0, "bpf", "is not brought back"},
    {"userfaultfd", TT_KIND_DEAD, 0, "userfaultfd", "is not brought back"},
};

int tt_anon_describe(struct tt_state *state, struct tt_desc *desc) {
  struct tt_text name = {desc->path, desc->path + strlen(desc->path)};
  tt_text_skip(&name, "anon_inode:");
  tt_text_skip(&name, "[");
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!tt_text_skip(&name, kinds[i].name)) continue;
    desc->kind = kinds[i].kind;
    if (kinds[i].report) tt_report_fd(state, kinds[i].report, desc->fd, kinds[i].detail);
    if (!kinds[i].describe) return 0;
    int error = slurp_info(state, desc->fd);
    return error ? error : kinds[i].describe(state, desc);
  }
  desc->kind = TT_KIND_DEAD;
  tt_report_fd(state, "descriptor", desc->fd, desc->path);
  return 0;
}

/* --- waking ------------------------------------------------------------------------------- */

static int open_timer(const struct tt_desc *desc) {
  int fd = (int)SC(SYS_timerfd_create, desc->u.timer.clock, TFD_CLOEXEC);
  if (fd < 0) return fd;
  SC(SYS_timerfd_settime, fd, desc->u.timer.flags, &desc->u.timer.left, 0);
  uint64_t ticks = desc->u.timer.ticks;
  if (ticks && SC(SYS_ioctl, fd, TFD_IOC_SET_TICKS_, &ticks)) {
    /* a kernel without that ioctl: let it expire once, now */
    struct itimerspec soon = desc->u.timer.left;
    soon.it_value.tv_sec = 0;
    soon.it_value.tv_nsec = 1;
    SC(SYS_timerfd_settime, fd, 0, &soon, 0);
  }
  return fd;
}

int tt_event_open(struct tt_state *state, struct tt_desc *desc) {
  int fd;
  (void)state;
  switch (desc->kind) {
    case TT_KIND_EPOLL: return (int)SC(SYS_epoll_create1, EPOLL_CLOEXEC);
    case TT_KIND_EVENTFD: {
      fd = (int)SC(SYS_eventfd2, 0, EFD_CLOEXEC | (desc->u.event.semaphore ? EFD_SEMAPHORE : 0));
      uint64_t count = desc->u.event.count;
      if (fd >= 0 && count) SC(SYS_write, fd, &count, 8);
      break;
    }
    case TT_KIND_TIMERFD: fd = open_timer(desc); break;
    case TT_KIND_SIGNALFD: fd = (int)SC(SYS_signalfd4, -1, &desc->u.signals, 8, SFD_CLOEXEC); break;
    case TT_KIND_PIDFD: fd = (int)SC(SYS_pidfd_open, SC(SYS_getpid), 0); break;
    default: fd = (int)SC(SYS_inotify_init1, IN_CLOEXEC); break;
  }
  if (fd >= 0) SC(SYS_fcntl, fd, F_SETFL, desc->flags);
  return fd;
}

static int is_done(const struct tt_state *state, int fd) {
  for (const struct tt_desc *d = state->descs; d; d = d->next)
    for (const struct tt_number *n = d->numbers; n; n = n->next)
      if (n->fd == fd) return d->done;
  return 0;
}

/* Once all that may be watched is there. In the live process an entry goes with the description
 * that was replaced, unless somebody else has that open too. */
void tt_epolls_fill(struct tt_state *state, int again) {
  for (struct tt_desc *d = state->descs; d; d = d->next) {
    if (d->kind != TT_KIND_EPOLL) continue;
    for (struct tt_watch *w = d->u.watches; w; w = w->next) {
      struct epoll_event event;
      if (again && !is_done(state, w->fd)) continue;
      event.events = w->events;
      event.data.u64 = w->data;
      long r = SC(SYS_epoll_ctl, d->fd, EPOLL_CTL_ADD, w->fd, &event);
      if (!r) continue;
      struct tt_note note = {{0}, 0};
      tt_note(&note, "fd ");
      tt_note_number(&note, (uint64_t)w->fd);
      tt_note(&note, " is not watched any more: ");
      tt_note_error(&note, (int)r);
      tt_report_fd(state, "epoll", d->fd, note.text);
    }
  }
}
