/* frozen.c: the frozen process: one thread that waits on its socket. Raw system calls only, since
 * any lock of libc may be held by a thread that is not there. */
#include "frozen.h"

#include "difference.h"
#include "hot.h"
#include "image.h"
#include "memory.h"
#include "parked.h"
#include "prefault.h"
#include "process.h"
#include "wake.h"

#define MOST_FDS 4
#define ID_PATIENCE_NS 50000000u
#define PATIENCE_SECONDS 5 /* for a peer that connected to say what it wants */

struct incoming {
  struct tt_request request;
  int fds[MOST_FDS], count;
  int connection;
  uint64_t started;
};

static void close_fds(struct incoming *in) {
  for (int i = 0; i < in->count; i++) tt_close(in->fds[i]);
  in->count = 0;
}

static int is_supervisor(const struct tt_state *state, int connection) {
  struct ucred peer;
  uint32_t size = sizeof peer;
  if (state->freeze->supervisor_pid == -1) return 1;
  return SC(SYS_getsockopt, connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.pid == state->freeze->supervisor_pid;
}

static int receive(struct incoming *in) {
  struct timeval patience = {PATIENCE_SECONDS, 0};
  char control[CMSG_SPACE(MOST_FDS * sizeof(int))] /* more than these: MSG_CTRUNC */
      __attribute__((aligned(8)));
  struct cmsghdr header;
  struct iovec data = {&in->request, sizeof in->request};
  struct msghdr message;
  memset(&message, 0, sizeof message);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  SC(SYS_setsockopt, in->connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  long n = SC(SYS_recvmsg, in->connection, &message, MSG_CMSG_CLOEXEC);
  in->started = tt_now_ns();
  if (n < 0) return (int)n;
  memset(&header, 0, sizeof header);
  if (message.msg_controllen >= sizeof header) memcpy(&header, control, sizeof header);
  if (header.cmsg_type == SCM_RIGHTS && header.cmsg_level == SOL_SOCKET) {
    in->count = (int)((header.cmsg_len - sizeof header) / sizeof(int));
    memcpy(in->fds, control + sizeof header, (size_t)in->count * sizeof(int));
  }
  if (n != (long)sizeof in->request || in->request.size != sizeof in->request ||
      message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
    return -EINVAL;
  return 0;
}

static void answer(struct incoming *in, int error, int32_t pid, uint64_t bytes) {
  tt_answer(in->connection, error, pid, in->started, bytes);
}

/* --- waking ------------------------------------------------------------------------------- */

static int prepare(struct tt_state *state, struct incoming *in, struct tt_waking *w) {
  const struct tt_freeze *f = state->freeze;
  const int given[3] = {f->link_fd, f->out_fd, f->err_fd};
  int next = 0;
  for (int i = 0; i < 3; i++) {
    w->passed[i] = -1;
    if (given[i] < 0) continue;
    if (next == in->count) return -EINVAL;
    w->passed[i] = in->fds[next++];
  }
  if (next != in->count) return -EINVAL;
  w->connection = in->connection;
  w->started = in->started;
  w->copy = (in->request.flags & TT_WAKE_COPY) != 0;
  if (w->copy && (!f->python_count || in->request.flags & TT_WAKE_CONSUME)) return -EINVAL;
  const uint32_t new_ids = TT_WAKE_NEW_IDS | TT_WAKE_COPY; /* the old ones are the session's */
  w->ids.want = !(f->flags & TT_NEW_IDS) && !(in->request.flags & new_ids) && TT_THREADS;
  w->ids.insist = (in->request.flags & TT_WAKE_KEEP_IDS_OR_FAIL) != 0;
  w->ids.kept = w->ids.want;
  w->ids.until_ns = w->started + ID_PATIENCE_NS;
  if (w->ids.insist && !w->ids.want) return -EINVAL;
  return 0;
}

/* k in the woken process; else 0. The woken one answers: others need not wait for it here, and a copy
 * may take its time (tt_step_back). */
static int wake(struct tt_state *state, struct incoming *in, int listen_fd) {
  struct tt_waking w;
  int error = prepare(state, in, &w);
  if (error) {
    answer(in, error, 0, TT_STEP_CLONE);
    return 0;
  }
  state->wakes += !w.copy;
  long pid = tt_clone_copy(&state->leader, &w.ids);
  if (pid == 0) return tt_wake(state, &w, listen_fd);
  if (pid < 0) {
    state->wakes -= !w.copy;
    answer(in, (int)pid, 0, TT_STEP_CLONE);
  }
  return 0;
}

/* k in the woken process, which has the memory now; 0 when that could not be made. */
static int consume(struct tt_state *state, struct incoming *in, int listen_fd) {
  struct tt_waking w;
  int error = prepare(state, in, &w);
  /* two processes may not both have the area registered, and the one that ends still has */
  if (!error && !state->rseq_free) error = -ENOTSUP;
  if (error) {
    answer(in, error, 0, TT_STEP_CLONE);
    return 0;
  }
  state->wakes++;
  long r = tt_clone_takeover(&state->leader, &w.ids);
  if (r == 0) return tt_wake(state, &w, listen_fd);
  state->wakes--;
  answer(in, (int)r, 0, TT_STEP_CLONE);
  return 0;
}

/* --- the rest ----------------------------------------------------------------------------- */

/* A clone that serves another socket: its number, in the clone; else the old one. */
static int twin(struct incoming *in, int listen_fd) {
  if (in->count != 1) {
    answer(in, EINVAL, 0, 0);
    return listen_fd;
  }
  tt_twin_look();
  long pid = tt_clone_copy(0, 0);
  if (pid != 0) {
    answer(in, pid < 0 ? (int)pid : 0, pid < 0 ? 0 : (int32_t)pid, 0);
    return listen_fd;
  }
  int own = in->fds[0];
  in->count = 0;
  tt_close(listen_fd);
  SC(SYS_setsid);
  tt_twin_touch(in->request.arg);
  return own;
}

/* A clone that becomes the frozen process of a later freeze, and answers. */
static void difference(struct tt_state *state, struct incoming *in, int listen_fd) {
  long pid = in->count == 2 ? tt_clone_copy(0, 0) : -EINVAL;
  if (pid < 0) answer(in, (int)pid, 0, 0);
  if (pid) return;
  const struct tt_difference_order order = {in->fds[1],     in->fds[0],  in->request.arg64,
                                            in->connection, in->started};
  tt_close(listen_fd);
  SC(SYS_setsid);
  tt_difference_take(state, &order);
}

/* A clone that is written down, by itself or by another program. It returns only in a process that was
 * put back: then with the socket that this one serves. */
static int image(struct tt_state *state, struct incoming *in, int listen_fd) {
  if (in->count != 1 || !TT_THREADS) {
    answer(in, TT_THREADS ? EINVAL : ENOTSUP, 0, 0);
    return listen_fd;
  }
  long pid = tt_clone_copy(0, 0);
  if (pid != 0) {
    answer(in, pid < 0 ? (int)pid : 0, pid < 0 ? 0 : (int32_t)pid, 0);
    return listen_fd;
  }
  if (in->request.command == TT_PARK) tt_close(listen_fd), tt_close(in->connection);
  int own = in->request.command == TT_PARK ? tt_park(state, in->fds[0])
                                           : tt_image_write(state, in->fds[0]);
  in->count = 0;
  in->connection = -1;
  return own;
}

static int serve(struct tt_state *state, struct incoming *in, int *listen_fd) {
  int32_t own = (int32_t)SC(SYS_getpid);
  switch (in->request.command) {
    case TT_PING: answer(in, 0, own, 0); return 0;
    case TT_WAKE:
      return in->request.flags & TT_WAKE_CONSUME ? consume(state, in, *listen_fd)
                                                 : wake(state, in, *listen_fd);
    case TT_IMAGE:
    case TT_PARK: *listen_fd = image(state, in, *listen_fd); return 0;
    case TT_TWIN: *listen_fd = twin(in, *listen_fd); return 0;
    case TT_DIFFERENCE: difference(state, in, *listen_fd); return 0;
    case TT_UNSHARE:
      answer(in, 0, own, tt_hot_unshare(state, in->request.arg64, *listen_fd));
      return 0;
    case TT_QUIT:
      answer(in, 0, own, 0);
      for (;;) SC(SYS_exit_group, 0);
    default: answer(in, EINVAL, own, 0); return 0;
  }
}

int tt_frozen(struct tt_state *state, int listen_fd) {
  tt_regions_ask(state);
  tt_maps_drop(state);
  tt_process_freeze(state, listen_fd);
  if (!(state->freeze->flags & TT_MOVE)) tt_regions_find(state);
  return tt_frozen_again(state, listen_fd);
}

int tt_frozen_again(struct tt_state *state, int listen_fd) {
  for (;;) {
    struct incoming in;
    memset(&in, 0, sizeof in);
    in.connection = (int)SC(SYS_accept4, listen_fd, 0, 0, SOCK_CLOEXEC);
    if (in.connection == -EINTR || in.connection == -ECONNABORTED) continue;
    if (in.connection < 0)
      for (;;) SC(SYS_exit_group, 1); /* nobody can reach us any more */
    int k = 0;
    if (is_supervisor(state, in.connection)) {
      int error = receive(&in);
      if (error)
        answer(&in, error, 0, 0);
      else
        k = serve(state, &in, &listen_fd);
    }
    if (k) return k;
    close_fds(&in);
    tt_close(in.connection);
  }
}
