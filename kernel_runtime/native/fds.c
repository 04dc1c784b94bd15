/* fds.c: see fds.h. */
#include "fds.h"

#define KCMP_FILE 0
#define F_SETOWN_EX_ 15 /* <fcntl.h> has these with _GNU_SOURCE only */
#define F_GETOWN_EX_ 16
#define F_OWNER_TID_ 0
#define LINK_SIZE 4096
#define SPARE_FDS 64 /* parked at one time */

/* --- describing ------------------------------------------------------------------------------ */

/* Whether two descriptors are one open file description. kcmp(2) may be refused (docker's default
 * profile); then a mark that nobody looks at: the signal of O_ASYNC, which is off. */
static int same_description(int a, int b) {
  long pid = SC(SYS_getpid);
  long r = SC(SYS_kcmp, pid, pid, KCMP_FILE, a, b);
  if (r >= 0) return r == 0;
  long before = SC(SYS_fcntl, b, F_GETSIG);
  int mark = before == SIGURG ? SIGIO : SIGURG;
  if (before < 0 || SC(SYS_fcntl, a, F_GETSIG) != before) return 0;
  if (SC(SYS_fcntl, a, F_GETFL) & O_ASYNC) return 0;
  if (SC(SYS_fcntl, a, F_SETSIG, mark)) return 0;
  int same = SC(SYS_fcntl, b, F_GETSIG) == mark;
  SC(SYS_fcntl, a, F_SETSIG, before);
  return same;
}

static struct tt_desc *find_same(struct tt_state *state, int fd, int flags, const struct stat *st) {
  for (struct tt_desc *d = state->descs; d; d = d->next)
    if (d->ino == st->st_ino && d->dev == st->st_dev && d->flags == flags &&
        same_description(d->fd, fd))
      return d;
  return 0;
}

/* The link of the executor and its output pipes are passed anew, whatever number they are at.
 * TT_KIND_DEAD: it is none of them. */
static enum tt_kind passed_kind(struct tt_state *state, int fd, int flags, const struct stat *st) {
  const struct tt_freeze *f = state->freeze;
  const int given[3] = {f->link_fd, f->out_fd, f->err_fd};
  if (S_ISREG(st->st_mode)) return TT_KIND_DEAD; /* the user has redirected it to a file */
  for (int i = 0; i < 3; i++)
    if (given[i] >= 0 && given[i] == fd) return (enum tt_kind)(TT_KIND_LINK + i);
  if (!S_ISSOCK(st->st_mode) && !S_ISFIFO(st->st_mode)) return TT_KIND_DEAD;
  for (int i = 0; i < 3; i++) {
    struct stat other;
    if (given[i] < 0 || SC(SYS_fstat, given[i], &other)) continue;
    if (other.st_ino == st->st_ino && other.st_dev == st->st_dev &&
        (i == 0 || (flags & O_ACCMODE) != O_RDONLY))
      return (enum tt_kind)(TT_KIND_LINK + i);
  }
  return TT_KIND_DEAD;
}

static int read_link(struct tt_state *state, struct tt_desc *desc) {
  char path[40];
  int error = tt_buffer_reserve(&state->text, LINK_SIZE);
  if (error) return error;
  tt_text_path(path, "/proc/self/fd/", (uint64_t)desc->fd, "");
  long n = SC(SYS_readlinkat, AT_FDCWD, path, state->text.data, LINK_SIZE - 1);
  if (n < 0) n = 0; /* longer than a path may be: nothing to open it by */
  desc->path = tt_copy_text(&state->arena, state->text.data, (size_t)n);
  return desc->path ? 0 : -ENOMEM;
}

static int describe_kind(struct tt_state *state, struct tt_desc *desc, const struct stat *st) {
  enum tt_kind passed = passed_kind(state, desc->fd, desc->flags, st);
  if (passed != TT_KIND_DEAD) {
    desc->kind = passed;
    return 0;
  }
  if (S_ISSOCK(st->st_mode)) return tt_socket_describe(state, desc);
  int error = read_link(state, desc);
  if (error) return error;
  if (desc->path[0] != '/') {
    if (S_ISFIFO(st->st_mode)) return tt_pipe_describe(state, desc);
    return tt_anon_describe(state, desc);
  }
  if (S_ISFIFO(st->st_mode) && !(desc->flags & O_PATH)) return tt_pipe_describe(state, desc);
  if (S_ISCHR(st->st_mode) && !(desc->flags & O_PATH)) return tt_terminal_describe(state, desc);
  return tt_file_describe(state, desc, st);
}

/* Whom a signal is sent when it is ready (O_ASYNC), or when urgent data comes: fcntl(2). */
static void note_owner(struct tt_state *state, struct tt_desc *desc) {
  if (SC(SYS_fcntl, desc->fd, F_GETOWN_EX_, desc->owner) || !desc->owner[1]) return;
  desc->signal = (int)SC(SYS_fcntl, desc->fd, F_GETSIG);
  int process = desc->owner[0] != F_OWNER_TID_ && desc->owner[1] == state->leader.tid;
  if (process || tt_is_thread(state, desc->owner[1])) return;
  desc->owner[1] = 0;
  tt_report_fd(state, "signal", desc->fd,
               "another process is signalled when it is ready (O_ASYNC): not any more");
}

/* Once the threads are there, which may be those that are signalled. */
void tt_fds_owners(struct tt_state *state) {
  for (struct tt_desc *d = state->descs; d; d = d->next) {
    if (!d->owner[1] || d->kind == TT_KIND_DEAD) continue;
    int owner[2] = {d->owner[0], d->owner[0] == F_OWNER_TID_ ? tt_woken_tid(state, d->owner[1])
                                                              : (int)SC(SYS_getpid)};
    long r = SC(SYS_fcntl, d->fd, F_SETOWN_EX_, owner);
    if (!r) r = SC(SYS_fcntl, d->fd, F_SETSIG, d->signal);
    if (!r) r = SC(SYS_fcntl, d->fd, F_SETFL, d->flags);
    if (!r) continue;
    struct tt_note note = {{0}, 0};
    tt_note(&note, "O_ASYNC: no signal is sent any more when it is ready, ");
    tt_note_error(&note, (int)r);
    tt_report_fd(state, "signal", d->fd, note.text);
  }
}

static int describe(struct tt_state *state, int fd) {
  struct stat st;
  long flags = SC(SYS_fcntl, fd, F_GETFL), fd_flags = SC(SYS_fcntl, fd, F_GETFD);
  if (flags < 0) return 0; /* the directory of this listing, closed by now */
  long r = SC(SYS_fstat, fd, &st);
  if (r) return (int)r;
  struct tt_number *number = tt_alloc(&state->arena, sizeof *number);
  if (!number) return -ENOMEM;
  number->fd = fd;
  number->flags = (int)fd_flags;
  state->count_fds++;
  if (fd > state->highest_fd) state->highest_fd = fd;
  struct tt_desc *desc = find_same(state, fd, (int)flags, &st);
  if (desc) {
    number->next = desc->numbers;
    desc->numbers = number;
    return 0;
  }
  desc = tt_alloc(&state->arena, sizeof *desc);
  if (!desc) return -ENOMEM;
  desc->numbers = number;
  desc->fd = fd;
  desc->flags = (int)flags;
  desc->mode = st.st_mode;
  desc->dev = st.st_dev;
  desc->ino = st.st_ino;
  desc->offset = -1;
  if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) desc->offset = SC(SYS_lseek, fd, 0, SEEK_CUR);
  *state->descs_end = desc;
  state->descs_end = &desc->next;
  note_owner(state, desc);
  return describe_kind(state, desc, &st);
}

/* The numbers first, the descriptors after: describing opens some itself. */
static int list_numbers(struct tt_state *state, int **numbers, size_t *count) {
  int directory = tt_open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
  if (directory < 0) return directory;
  struct tt_buffer *b = &state->text;
  long n = tt_buffer_reserve(b, 16384);
  size_t used = 0;
  while (n == 0 && (n = SC(SYS_getdents64, directory, b->data + used, b->capacity - used)) > 0) {
    used += (size_t)n;
    n = tt_buffer_reserve(b, used + 16384);
  }
  tt_close(directory);
  if (n < 0) return (int)n;
  *numbers = tt_alloc(&state->arena, used / 24 * sizeof **numbers + sizeof **numbers);
  if (!*numbers) return -ENOMEM;
  *count = 0;
  for (size_t at = 0; at < used;) {
    uint16_t length;
    memcpy(&length, b->data + at + 16, 2); /* struct linux_dirent64: ino, off, reclen, type, name */
    struct tt_text name = {b->data + at + 19, b->data + at + length};
    if (*name.at != '.') (*numbers)[(*count)++] = (int)tt_text_number(&name);
    at += length;
  }
  return 0;
}

int tt_fds_describe(struct tt_state *state) {
  const struct tt_freeze *f = state->freeze;
  int *numbers = 0;
  size_t count = 0;
  state->descs_end = &state->descs;
  state->highest_fd = 2;
  int error = list_numbers(state, &numbers, &count);
  for (size_t i = 0; !error && i < count; i++)
    if (numbers[i] != f->listen_fd && numbers[i] != f->hold_fd && numbers[i] != f->difference_fd)
      error = describe(state, numbers[i]);
  if (!error) error = tt_sockets_finish(state);
  if (!error) tt_pipes_finish(state);
  return error;
}

/* --- waking ------------------------------------------------------------------------------- */

void tt_fds_raise_limit(struct tt_state *state, struct rlimit *before) {
  struct rlimit more;
  rlim_t need = (rlim_t)state->highest_fd + SPARE_FDS;
  memset(before, 0, sizeof *before);
  SC(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, before);
  if (before->rlim_cur >= need) return;
  more = *before;
  more.rlim_cur = before->rlim_max < need ? before->rlim_max : need;
  SC(SYS_prlimit64, 0, RLIMIT_NOFILE, &more, 0);
}

int tt_fds_park(struct tt_state *state, int fd) {
  long r = SC(SYS_fcntl, fd, F_DUPFD_CLOEXEC, state->highest_fd + 1);
  tt_close(fd);
  return (int)r;
}

int tt_fds_install(struct tt_state *state, struct tt_desc *desc, int fd) {
  (void)state;
  for (struct tt_number *n = desc->numbers; n; n = n->next) {
    long r = SC(SYS_dup3, fd, n->fd, n->flags & FD_CLOEXEC ? O_CLOEXEC : 0);
    if (r < 0) return (int)r;
  }
  tt_close(fd);
  desc->done = 1;
  return 0;
}

static int open_dead(void) {
  int fd = tt_open("/dev/null", O_PATH);
  return fd >= 0 ? fd : tt_open("/", O_PATH);
}

static int open_kind(struct tt_state *state, struct tt_desc *desc, const int passed[3]) {
  switch (desc->kind) {
    case TT_KIND_LINK:
    case TT_KIND_OUT:
    case TT_KIND_ERR: {
      int fd = passed[desc->kind - TT_KIND_LINK];
      if (fd < 0) return -EBADF;
      long r = SC(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0);
      if (r >= 0) SC(SYS_fcntl, r, F_SETFL, desc->flags);
      return (int)r;
    }
    case TT_KIND_PATH: return tt_file_open(state, desc);
    case TT_KIND_OBJECT: return tt_object_open(state, desc);
    case TT_KIND_PIPE:
    case TT_KIND_FIFO: return tt_pipe_open(state, desc);
    case TT_KIND_ENDED: return tt_ended_open(state, desc);
    case TT_KIND_SOCKET: return tt_socket_open(state, desc);
    case TT_KIND_TERMINAL: return tt_terminal_open(state, desc);
    case TT_KIND_EPOLL:
    case TT_KIND_EVENTFD:
    case TT_KIND_TIMERFD:
    case TT_KIND_SIGNALFD:
    case TT_KIND_INOTIFY:
    case TT_KIND_PIDFD: return tt_event_open(state, desc);
    case TT_KIND_DEAD: return open_dead();
  }
  return -EINVAL;
}

static int rebuild(struct tt_state *state, struct tt_desc *desc, const int passed[3]) {
  int fd = open_kind(state, desc, passed);
  if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM) return fd;
  if (fd < 0) {
    struct tt_note note = {{0}, 0};
    tt_note(&note, desc->path ? desc->path : "descriptor");
    tt_note(&note, ": not opened again, ");
    tt_note_error(&note, fd);
    tt_report_fd(state, "file", desc->fd, note.text);
    fd = open_dead();
  }
  if (fd >= 0) fd = tt_fds_park(state, fd);
  return fd < 0 ? fd : tt_fds_install(state, desc, fd);
}

int tt_fds_rebuild(struct tt_state *state, const int passed[3]) {
  for (struct tt_desc *d = state->descs; d; d = d->next) {
    int error = d->done ? 0 : rebuild(state, d, passed);
    if (error) return error;
  }
  tt_pipes_close(state);
  tt_letters_send(state);
  tt_epolls_fill(state, 0);
  return 0;
}
