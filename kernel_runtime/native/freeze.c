/* freeze.c: tt_freeze: stop, describe, copy (or move), go on. */
#include "copies.h"
#include "difference.h"
#include "fds.h"
#include "frozen.h"
#include "hold.h"
#include "hot.h"
#include "memory.h"
#include "process.h"
#include "timers.h"
#include "wake.h"

#include <poll.h>
#include <sys/auxv.h>

#define CLOSING_SECONDS 5

int tt_abi(void) { return TT_ABI; }

static struct tt_state *new_state(struct tt_freeze *f, char *report, size_t report_size) {
  struct tt_arena arena = {0};
  struct tt_state *state = tt_alloc(&arena, sizeof *state);
  if (!state) return 0;
  state->arena = arena;
  state->freeze = f;
  state->report_text = report;
  state->report_size = report_size;
  state->aside_left = f->aside_limit;
  tt_report_start(&state->report, report, report_size);
  return state;
}

static int check(struct tt_freeze *f, struct tt_report *report) {
  const int fds[] = {f->listen_fd, f->link_fd, f->out_fd, f->err_fd, f->hold_fd, f->difference_fd};
  for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
    if ((i == 0 || fds[i] != -1) && SC(SYS_fcntl, fds[i], F_GETFD) < 0) {
      tt_report(report, "refused", "descriptor", "one that was given is not open");
      return -EINVAL;
    }
  if (SC(SYS_gettid) != SC(SYS_getpid)) {
    tt_report(report, "refused", "thread", "only the first thread of a process can freeze it");
    return -EINVAL;
  }
  const char *why = tt_unsupported();
  if (!why && !TT_THREADS && f->flags & TT_MOVE) why = "this platform cannot move a process";
  if (why) tt_report(report, "refused", "platform", why);
  return why ? -ENOTSUP : 0;
}

static int describe(struct tt_state *state) {
  int error = tt_thread_note(&state->leader);
  if (!error) error = tt_threads_describe(&state->arena, &state->stopped);
  if (!error) error = tt_copies_describe(state);
  if (!error) error = tt_process_describe(state);
  if (!error) error = tt_timers_describe(state);
  if (!error) error = tt_fds_describe(state);
  if (!error) error = tt_maps_describe(state);
  if (!error) error = tt_hot_sample(state);
  return error;
}

/* The caller turns into the frozen process: another process takes over its memory and it ends. What
 * the kernel would write to that memory when the threads die is given up first. 0 in the new
 * process, or -errno with everything as before. */
static long move(struct tt_state *state) {
  tt_disarm(&state->stopped, 1);
  SC(SYS_set_tid_address, 0);
  if (state->leader.robust_size) SC(SYS_set_robust_list, 0, state->leader.robust_size);
  state->rseq_free = tt_rseq(state->leader.pointer, 0) == 0;
  long r = state->rseq_free ? tt_clone_takeover(0, 0) : -ENOTSUP;
  if (r == 0) return 0;
  tt_rseq(state->leader.pointer, 1);
  if (state->leader.robust_size)
    SC(SYS_set_robust_list, state->leader.robust, state->leader.robust_size);
  SC(SYS_set_tid_address, state->leader.clear_tid);
  tt_disarm(&state->stopped, 0);
  return r;
}

static void explain(struct tt_state *state, int error) {
  static const char *const steps[] = {"stop", "describe", "clone"};
  struct tt_note note = {{0}, 0};
  if (error == -ENOTSUP && TT_THREADS)
    tt_note(&note, "the kernel does not tell what it keeps of threads (CONFIG_CHECKPOINT_RESTORE)");
  else if (error == -ENOTSUP)
    tt_note(&note, "a process with more than one thread, on this platform");
  else if (error == -ETIMEDOUT)
    tt_note(&note, "a thread did not stop in time");
  else if (error == -ECANCELED)
    tt_note(&note, "it was not told to leave");
  else if (error == -EINVAL && state->step == TT_AT_CLONE)
    tt_note(&note, "the first process of a pid namespace cannot be frozen");
  else
    tt_note_error(&note, error);
  tt_report_start(&state->report, state->report_text, state->report_size);
  tt_report(&state->report, "refused", steps[state->step], note.text);
}

static void name_blocking(struct tt_freeze *f, int32_t tid) {
  char path[64];
  f->blocking_tid = tid;
  tt_text_path(path, "/proc/self/task/", (uint64_t)tid, "/comm");
  int fd = tt_open(path, O_RDONLY);
  long n = fd < 0 ? 0 : SC(SYS_read, fd, f->blocking_name, sizeof f->blocking_name);
  tt_close(fd);
  if (n > 0) f->blocking_name[n - 1] = 0; /* the newline */
}

static void clear_results(struct tt_freeze *f) {
  size_t first = offsetof(struct tt_freeze, frozen_pid);
  memset((char *)f + first, 0, sizeof *f - first);
}

static void wait_for_end(int fd) {
  struct pollfd end = {fd, POLLIN, 0};
  struct timespec most = {CLOSING_SECONDS, 0}; /* longer only if somebody has stopped it */
  if (fd >= 0) SC(SYS_ppoll, &end, 1, &most, 0);
}

/* closed: the end of a pipe that ends when the frozen process has closed all that it does not keep,
 * or -1. Only then may user code find a port free and a pipe without other readers. */
static int go_on(struct tt_state *state, long result, uint64_t started, int closed) {
  struct tt_freeze *f = state->freeze;
  uint64_t mask = state->mask;
  int32_t blocking = state->stopped.blocking_tid;
  f->threads = state->stopped.count;
  if ((result >= 0 || state->held) && f->hold_fd >= 0) tt_hold(state, (int32_t)result, closed);
  tt_release(&state->stopped);
  wait_for_end(closed);
  tt_close(closed);
  f->pause_ns = tt_now_ns() - started;
  if (result < 0) explain(state, (int)result);
  if (result == -ETIMEDOUT) name_blocking(f, blocking);
  f->aside_bytes = state->aside_bytes;
  f->aside_ns = state->aside_ns;
  f->frozen_fds = state->count_fds;
  f->frozen_pid = result > 0 ? (int32_t)result : 0;
  tt_state_free(state, result > 0);
  SC(SYS_rt_sigprocmask, SIG_SETMASK, &mask, 0, 8);
  return result < 0 ? (int)result : 0;
}

/* Another process, or this one, becomes the frozen process. */
static int copy(struct tt_state *state, uint64_t started) {
  struct tt_freeze *f = state->freeze;
  const int moves = (f->flags & TT_MOVE) != 0;
  int ends[2], error = (int)SC(SYS_pipe2, ends, O_CLOEXEC);
  if (error) return go_on(state, error, started, -1);
  if (moves && f->hold_fd >= 0 && (error = tt_hold_leave(state))) {
    for (int i = 0; i < 2; i++) tt_close(ends[i]);
    return go_on(state, error, started, -1);
  }
  uint64_t at = tt_now_ns();
  if (!moves) tt_regions_note(state);
  long pid = moves ? move(state) : tt_clone_copy(0, 0);
  if (pid == 0) return tt_frozen(state, f->listen_fd);
  f->clone_ns = tt_now_ns() - at;
  tt_close(ends[1]); /* before another thread can fork and inherit it */
  int lacks = pid > 0 && tt_regions_lack(state, (int32_t)pid);
  /* it asks what we have: nothing may be mapped or unmapped meanwhile */
  if (lacks) wait_for_end(ends[0]);
  tt_base_made(state, f->difference_fd >= 0 && pid > 0 && !lacks ? (int32_t)pid : 0);
  return go_on(state, pid, started, ends[0]);
}

/* Without a process, where that can be. 1, and the result is what tt_freeze returns. */
static int note_difference(struct tt_state *state, uint64_t started, int *result) {
  uint64_t at = tt_now_ns();
  int listen_fd = -1;
  int64_t bytes = tt_difference_write(state, &listen_fd);
  if (listen_fd >= 0) {
    *result = tt_frozen_again(state, listen_fd);
    return 1;
  }
  if (bytes == 0) return 0;
  state->freeze->difference_bytes = bytes > 0 ? (uint64_t)bytes : 0;
  state->freeze->clone_ns = tt_now_ns() - at;
  *result = go_on(state, bytes > 0 ? 0 : bytes, started, -1);
  return 1;
}

int tt_freeze(struct tt_freeze *f, char *report, size_t report_size) {
  struct tt_report early;
  uint64_t all = ~(uint64_t)0, started, at;
  int result;
  tt_report_start(&early, report, report_size);
  if (!f || f->size != sizeof *f) return -EINVAL;
  clear_results(f);
  tt_page = getauxval(AT_PAGESZ);
  int error = check(f, &early);
  if (error) return error;
  const int wanted = f->difference_fd >= 0 && tt_difference_prepare() == 0;
  tt_pool_prepare();
  struct tt_state *state = new_state(f, report, report_size);
  if (!state) return -ENOMEM;
  SC(SYS_rt_sigprocmask, SIG_SETMASK, &all, &state->mask, 8);
  started = tt_now_ns();
  error = tt_stop(&state->stopped, f->stop_timeout_ms);
  f->stop_ns = (at = tt_now_ns()) - started;
  if (!error) {
    state->step = TT_AT_DESCRIBE;
    error = describe(state);
  }
  f->describe_ns = tt_now_ns() - at;
  if (error) return go_on(state, error, started, -1);
  state->step = TT_AT_CLONE;
  if (wanted && note_difference(state, started, &result)) return result;
  return copy(state, started);
}
