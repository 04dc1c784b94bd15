/* hold.c: see hold.h. */
#include "hold.h"

#include <poll.h>

/* 0 when there is something to read, or the end; -ETIMEDOUT, or another -errno. */
static int wait_for(int fd, uint64_t until_ns) {
  for (;;) {
    uint64_t now = tt_now_ns(), left = until_ns > now ? until_ns - now : 0;
    struct timespec most = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
    struct pollfd one = {fd, POLLIN, 0};
    long r = SC(SYS_ppoll, &one, 1, &most, 0, 8);
    if (r != -EINTR) return r > 0 ? 0 : r < 0 ? (int)r : -ETIMEDOUT;
  }
}

/* Bytes of the next packet, of which more than size are cut off; or -errno. */
static long hear(int fd, void *to, size_t size, uint64_t until_ns) {
  int error = wait_for(fd, until_ns);
  if (error) return error;
  long n = SC(SYS_recvfrom, fd, to, size, MSG_DONTWAIT | MSG_TRUNC, 0, 0);
  return n ? n : -EPIPE;
}

static int say(int fd, const void *packet, size_t size) {
  long n = SC(SYS_sendto, fd, packet, size, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
  return n < 0 ? (int)n : 0;
}

static int hear_switched(struct tt_state *state, uint64_t until_ns, struct tt_switched **switched) {
  size_t most = sizeof **switched + TT_MOUNTS_MOST * sizeof(int32_t);
  struct tt_switched *s = tt_alloc(&state->arena, most);
  if (!s) return -ENOMEM;
  long n = hear(state->freeze->hold_fd, s, most, until_ns);
  if (n < 0) return (int)n;
  if ((size_t)n < sizeof *s || s->size != sizeof *s || s->count > TT_MOUNTS_MOST ||
      (size_t)n != sizeof *s + s->count * sizeof(int32_t))
    return -EBADMSG;
  *switched = s;
  return 0;
}

/* Whoever holds us shall know that we are not held any more, and a packet that comes too late must
 * not be taken for an answer to the next freeze: the connection is of no use from here on. */
static void give_up(struct tt_state *state, const char *what, int error) {
  struct tt_note note = {{0}, 0};
  tt_note(&note, what);
  if (error == -ETIMEDOUT)
    tt_note(&note, "no answer in time");
  else if (error == -EPIPE)
    tt_note(&note, "the other end is closed");
  else if (error == -EBADMSG)
    tt_note(&note, "a packet that is not understood");
  else
    tt_note_error(&note, error);
  tt_report(&state->report, "environment", "hold", note.text);
  SC(SYS_shutdown, state->freeze->hold_fd, SHUT_RDWR);
}

int tt_hold_leave(struct tt_state *state) {
  const struct tt_freeze *f = state->freeze;
  uint64_t until_ns = tt_now_ns() + (uint64_t)f->hold_timeout_ms * 1000000u;
  char said = 0;
  long n = hear(f->hold_fd, &said, sizeof said, until_ns);
  /* Too late, as this process was stopped by a signal, who said so may have given it up. */
  if (tt_now_ns() > until_ns) return -ECANCELED;
  return n == 1 && said == TT_LEAVE ? 0 : -ECANCELED;
}

int tt_hold_begin(struct tt_state *state, int32_t frozen_pid) {
  struct tt_held held = {sizeof held, frozen_pid};
  if (state->held) return 0;
  state->held = 1;
  return say(state->freeze->hold_fd, &held, sizeof held);
}

static void hold(struct tt_state *state, int32_t frozen_pid, int closed, uint64_t until_ns) {
  int fd = state->freeze->hold_fd;
  struct tt_switched *switched = 0;
  char last;
  int error = tt_hold_begin(state, frozen_pid);
  if (!error) error = hear_switched(state, until_ns, &switched);
  if (error) {
    give_up(state, "not known whether mounts were switched; nothing was opened again: ", error);
    return;
  }
  if (!switched->count) return;
  /* The frozen process shares our descriptions, and with them locks and what keeps a mount busy,
   * until it has closed them. It had time for that while the mounts were switched. */
  error = closed >= 0 ? wait_for(closed, until_ns) : 0;
  if (error)
    tt_report(&state->report, "environment", "hold",
              "the frozen process has not closed its descriptors yet");
  struct tt_reopened reopened = tt_reopen(state, switched->mount_ids, switched->count);
  error = say(fd, &reopened, sizeof reopened);
  long n = error ? error : hear(fd, &last, sizeof last, until_ns);
  if (n < 0) give_up(state, "not known whether the old mounts are gone: ", (int)n);
}

void tt_hold(struct tt_state *state, int32_t frozen_pid, int closed) {
  struct tt_freeze *f = state->freeze;
  uint64_t started = tt_now_ns();
  hold(state, frozen_pid, closed, started + (uint64_t)f->hold_timeout_ms * 1000000u);
  f->hold_ns = tt_now_ns() - started;
}
