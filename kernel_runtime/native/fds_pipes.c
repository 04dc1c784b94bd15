/* fds_pipes.c: pipes and FIFOs, with what is in them. */
#include "fds.h"

#include <sys/ioctl.h>

#define SPLICE_NONBLOCK 2 /* SPLICE_F_NONBLOCK */

static struct tt_pipe *find(struct tt_state *state, struct tt_desc *desc) {
  struct tt_pipe *p = state->pipes;
  while (p && p->ino != desc->ino) p = p->next;
  if (p) return p;
  p = tt_alloc(&state->arena, sizeof *p);
  if (!p) return 0;
  p->ino = desc->ino;
  p->next = state->pipes;
  state->pipes = p;
  return p;
}

/* Copy what is in the pipe by tee(2) into another one, and read that: packets stay apart. */
static int copy_contents(struct tt_state *state, struct tt_pipe *pipe, int fd, int bytes) {
  int scratch[2];
  long r = SC(SYS_pipe2, scratch, O_CLOEXEC | O_NONBLOCK);
  if (r) return (int)r;
  SC(SYS_fcntl, scratch[0], F_SETPIPE_SZ, pipe->size);
  r = SC(SYS_tee, fd, scratch[1], bytes, SPLICE_NONBLOCK);
  int error = r < 0 ? (int)r : 0;
  int whole = r == bytes;
  if (!error) error = tt_buffer_reserve(&state->text, (size_t)bytes);
  while (!error && (r = SC(SYS_read, scratch[0], state->text.data, bytes)) > 0) {
    char *to = tt_extent_add(state, &pipe->contents, 0, (uint64_t)r);
    if (to)
      memcpy(to, state->text.data, (size_t)r);
    else
      whole = 0;
  }
  tt_close(scratch[0]);
  tt_close(scratch[1]);
  if (!error && !whole) tt_report_fd(state, "pipe", fd, "not all of its contents could be copied");
  return error;
}

int tt_pipe_describe(struct tt_state *state, struct tt_desc *desc) {
  int mode = desc->flags & O_ACCMODE, bytes = 0, named = desc->path[0] == '/';
  struct tt_pipe *pipe = find(state, desc);
  if (!pipe) return -ENOMEM;
  desc->kind = named ? TT_KIND_FIFO : TT_KIND_PIPE;
  desc->u.pipe = pipe;
  pipe->size = (int)SC(SYS_fcntl, desc->fd, F_GETPIPE_SZ);
  if (mode != O_RDONLY) pipe->has_writer = 1;
  if (mode == O_WRONLY) return 0;
  int first = !pipe->has_reader;
  pipe->has_reader = 1;
  if (!first || SC(SYS_ioctl, desc->fd, FIONREAD, &bytes) || bytes <= 0) return 0;
  return copy_contents(state, pipe, desc->fd, bytes);
}

void tt_pipes_finish(struct tt_state *state) {
  for (struct tt_desc *d = state->descs; d; d = d->next) {
    if (d->kind != TT_KIND_PIPE && d->kind != TT_KIND_FIFO) continue;
    struct tt_pipe *p = d->u.pipe;
    if (p->has_reader && p->has_writer) continue;
    tt_report_fd(state, "pipe", d->fd,
                 p->has_reader
                     ? "its writer is another process: the end of the data follows what is in it"
                     : "its reader is another process: writing fails with EPIPE");
  }
}

static void fill(struct tt_state *state, struct tt_pipe *pipe, int fd, int reported) {
  int packets = pipe->contents.first && pipe->contents.first->next;
  if (packets) SC(SYS_fcntl, fd, F_SETFL, O_NONBLOCK | O_DIRECT);
  for (struct tt_extent *e = pipe->contents.first; e; e = e->next)
    if (SC(SYS_write, fd, e->data, e->size) != (long)e->size) {
      tt_report_fd(state, "pipe", reported, "not all of its contents could be put back");
      return;
    }
}

/* Both ends of a new pipe, parked, with the contents in it. An end that was elsewhere is closed. */
static int make(struct tt_state *state, struct tt_desc *desc, struct tt_pipe *pipe) {
  int ends[2];
  long r = SC(SYS_pipe2, ends, O_CLOEXEC | O_NONBLOCK);
  if (r) return (int)r;
  SC(SYS_fcntl, ends[0], F_SETPIPE_SZ, pipe->size);
  fill(state, pipe, ends[1], desc->fd);
  ends[0] = tt_fds_park(state, ends[0]);
  ends[1] = tt_fds_park(state, ends[1]);
  if (ends[0] < 0 || ends[1] < 0) return ends[0] < 0 ? ends[0] : ends[1];
  for (int i = 0; i < 2; i++) {
    if (i ? pipe->has_writer : pipe->has_reader) continue;
    tt_close(ends[i]);
    ends[i] = -1;
  }
  pipe->made[0] = ends[0];
  pipe->made[1] = ends[1];
  return 0;
}

/* A FIFO is opened for both first: that never waits, and keeps the others from waiting. */
static int make_named(struct tt_state *state, struct tt_desc *desc, struct tt_pipe *pipe) {
  int fd = tt_open(desc->path, O_RDWR | O_NONBLOCK);
  if (fd < 0) return fd;
  fd = tt_fds_park(state, fd);
  if (fd < 0) return fd;
  pipe->made[0] = fd;
  pipe->made[1] = -1;
  SC(SYS_fcntl, fd, F_SETPIPE_SZ, pipe->size);
  fill(state, pipe, fd, desc->fd);
  return 0;
}

int tt_pipe_open(struct tt_state *state, struct tt_desc *desc) {
  struct tt_pipe *p = desc->u.pipe;
  int named = desc->kind == TT_KIND_FIFO;
  if (!p->made[0] && !p->made[1]) {
    int error = named ? make_named(state, desc, p) : make(state, desc, p);
    if (error) return error;
  }
  long fd;
  if (named) {
    fd = tt_open(desc->path, (desc->flags & O_ACCMODE) | O_NONBLOCK);
  } else if ((desc->flags & O_ACCMODE) == O_RDWR) {
    char path[40]; /* made by opening /proc/self/fd/N of a pipe */
    tt_text_path(path, "/proc/self/fd/", (uint64_t)p->made[0], "");
    fd = tt_open(path, O_RDWR | O_NONBLOCK);
  } else {
    /* A second description of the same end shares the flags of the first here. */
    fd = SC(SYS_fcntl, p->made[(desc->flags & O_ACCMODE) == O_WRONLY], F_DUPFD_CLOEXEC, 0);
  }
  if (fd >= 0) SC(SYS_fcntl, fd, F_SETFL, desc->flags);
  return (int)fd;
}

int tt_pipe_is_known(const struct tt_desc *desc) {
  const struct tt_pipe *p = desc->u.pipe;
  uint64_t copied = 0;
  int bytes = -1;
  for (const struct tt_extent *e = p->contents.first; e; e = e->next) copied += e->size;
  return p->has_reader && p->has_writer && SC(SYS_ioctl, desc->fd, FIONREAD, &bytes) == 0 &&
         (uint64_t)bytes == copied;
}

int tt_ended_open(struct tt_state *state, struct tt_desc *desc) {
  int ends[2];
  (void)state;
  long r = SC(SYS_pipe2, ends, O_CLOEXEC);
  if (r) return (int)r;
  int keep = (desc->flags & O_ACCMODE) == O_WRONLY;
  tt_close(ends[!keep]);
  SC(SYS_fcntl, ends[keep], F_SETFL, desc->flags & O_NONBLOCK);
  return ends[keep];
}

void tt_pipes_close(struct tt_state *state) {
  for (struct tt_pipe *p = state->pipes; p; p = p->next)
    for (int i = 0; i < 2; i++) {
      if (p->made[i] > 0) tt_close(p->made[i]);
      p->made[i] = 0;
    }
}
